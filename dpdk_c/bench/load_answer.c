/* bench/load: the answers to commands, one JSON object a line: what went wrong, and everything counted. */
#include "load.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

int load_answer_error(const char *format, ...)
{
    va_list values;

    printf("{\"error\": \"");
    va_start(values, format);
    vprintf(format, values);
    va_end(values);
    printf("\"}\n");
    return -1;
}

int load_answer_lost(const struct load_qp *qp)
{
    return load_answer_error(
        "rank %u pool %u round %u is lost: fault %u, expected %#" PRIx64 ", got %#" PRIx64, qp->spec.rank,
        qp->spec.pool, qp->received, qp->lost.fault, qp->lost.expected, qp->lost.got);
}

static void print_drops(const uint64_t *drops)
{
    const char *comma = "";

    printf("\"drops\": {");
    for (uint32_t i = 1; i < PSC_DROP_COUNT; i++)
        if (drops[i] > 0) {
            printf("%s\"%u\": %" PRIu64, comma, i, drops[i]);
            comma = ", ";
        }
    printf("}");
}

static void print_wrong(const struct load *load)
{
    const struct load_wrong *wrong = &load->first_wrong;

    if (load->counters.wrong_packets > 0)
        printf(", \"first_wrong\": \"rank %u, pool %u, round %u, op %u, byte %u: %#x instead of %#x\"",
               wrong->rank, wrong->pool, wrong->round, wrong->op, wrong->offset_bytes, wrong->got,
               wrong->expected);
}

int load_answer_counters(const struct load *load, const struct load_port *port, double seconds)
{
    const struct load_counters *c = &load->counters;
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {{"rx_packets", c->rx_packets},
                {"rx_bytes", c->rx_bytes},
                {"tx_packets", c->tx_packets},
                {"tx_bytes", c->tx_bytes},
                {"lost_rx_packets", c->lost_rx_packets},
                {"lost_tx_packets", c->lost_tx_packets},
                {"sent_again", c->sent_again},
                {"timeouts", c->timeouts},
                {"acks_sent", c->acks_sent},
                {"naks_sent", c->naks_sent},
                {"acks_received", c->acks_received},
                {"naks_received", c->naks_received},
                {"contribution_packets", c->contribution_packets},
                {"contribution_bytes", c->contribution_bytes},
                {"results", c->rounds},
                {"result_bytes", c->result_bytes},
                {"wrong_packets", c->wrong_packets},
                {"wrong_messages", c->wrong_messages},
                {"received_data", load_received(load, PSC_POOL_DATA)},
                {"received_small", load_received(load, PSC_POOL_SMALL)},
                {"mbufs_out", load_port_mbufs(port)},
                {"lane_busy_ns", load_lane_stats()->busy_ns},
                {"lane_rx_packets", load_lane_stats()->rx_packets},
                {"lane_tx_packets", load_lane_stats()->tx_packets}};

    printf("{\"seconds\": %.6f, ", seconds);
    for (size_t i = 0; i < RTE_DIM(rows); i++)
        printf("\"%s\": %" PRIu64 ", ", rows[i].name, rows[i].value);
    print_drops(c->drops);
    print_wrong(load);
    printf("}\n");
    return 0;
}
