/* sim/: virtual time. What is to happen when; ties happen in the order in which they were planned. */
#ifndef SIM_AGENDA_H
#define SIM_AGENDA_H

#include <stdbool.h>
#include <stdint.h>

struct sim;

/* What happens: called with the subject and the number that it was planned with. */
typedef void sim_happening(struct sim *sim, void *subject, uint64_t number);

struct sim_entry {
    uint64_t at_ns;
    uint64_t order;
    sim_happening *happen;
    void *subject;
    uint64_t number;
};

/* A binary heap. Written by the functions below alone. */
struct sim_agenda {
    struct sim_entry *entries;
    uint32_t count, room;
    uint64_t planned;
};

void sim_agenda_add(struct sim_agenda *agenda, uint64_t at_ns, sim_happening *happen, void *subject,
                    uint64_t number);
/* Takes the next entry; false: nothing is planned any more. */
bool sim_agenda_next(struct sim_agenda *agenda, struct sim_entry *entry);
void sim_agenda_free(struct sim_agenda *agenda);

#endif
