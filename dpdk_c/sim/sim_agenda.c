/* sim/: the agenda, a binary heap by time and then by the order of planning. */
#include "sim_agenda.h"

#include <stdlib.h>

static bool before(const struct sim_entry *a, const struct sim_entry *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

void sim_agenda_add(struct sim_agenda *agenda, uint64_t at_ns, sim_happening *happen, void *subject,
                    uint64_t number)
{
    const struct sim_entry entry = {at_ns, agenda->planned++, happen, subject, number};

    if (agenda->count == agenda->room) {
        agenda->room = agenda->room ? 2 * agenda->room : 256;
        agenda->entries = realloc(agenda->entries, agenda->room * sizeof *agenda->entries);
        if (!agenda->entries)
            abort();
    }
    uint32_t at = agenda->count++;
    for (; at > 0 && before(&entry, &agenda->entries[(at - 1) / 2]); at = (at - 1) / 2)
        agenda->entries[at] = agenda->entries[(at - 1) / 2];
    agenda->entries[at] = entry;
}

bool sim_agenda_next(struct sim_agenda *agenda, struct sim_entry *entry)
{
    if (agenda->count == 0)
        return false;
    *entry = agenda->entries[0];
    const struct sim_entry last = agenda->entries[--agenda->count];
    uint32_t at = 0;
    for (uint32_t child; (child = 2 * at + 1) < agenda->count; at = child) {
        if (child + 1 < agenda->count && before(&agenda->entries[child + 1], &agenda->entries[child]))
            child++;
        if (!before(&agenda->entries[child], &last))
            break;
        agenda->entries[at] = agenda->entries[child];
    }
    agenda->entries[at] = last;
    return true;
}

void sim_agenda_free(struct sim_agenda *agenda)
{
    free(agenda->entries);
    *agenda = (struct sim_agenda){0};
}
