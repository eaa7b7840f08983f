/* Start and stop of the data plane. EAL gets a thread of its own, because it pins the thread that starts it
 * and because the same thread must stop it; between the two that thread fetches what the ports
 * have lost. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "psc_arith.h"
#include "psc_ctl_internal.h"
#include "psc_roce.h"

_Static_assert((int)PSC_CTL_EAL == PSC_IO_EAL && (int)PSC_CTL_LANE_CORE == PSC_IO_LANE_CORE &&
                   (int)PSC_CTL_PORT_ABSENT == PSC_IO_PORT_ABSENT &&
                   (int)PSC_CTL_PORT_SETUP == PSC_IO_PORT_SETUP &&
                   (int)PSC_CTL_MTU_TOO_SMALL == PSC_IO_MTU_TOO_SMALL && (int)PSC_CTL_MEMORY == PSC_IO_MEMORY,
               "codes of ctl/ and io/");
_Static_assert((int)PSC_CTL_STEER_PORT == PSC_IO_STEER_PORT && (int)PSC_CTL_STEER_QPN == PSC_IO_STEER_QPN &&
                   (int)PSC_CTL_STEER_ADDRESS == PSC_IO_STEER_ADDRESS &&
                   (int)PSC_CTL_STEER_DISPATCHER == PSC_IO_STEER_DISPATCHER &&
                   PSC_CTL_NO_CORE == PSC_IO_NO_CORE && PSC_CTL_WHY_BYTES == PSC_IO_WHY_BYTES,
               "steerings of ctl/ and io/");

#define WATCH_NS 500000000

struct psc_ctl psc_ctl = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

uint32_t psc_ctl_version(void)
{
    return PSC_CTL_VERSION;
}

const char *psc_ctl_library_version(void)
{
    return PSC_LIBRARY_VERSION;
}

const char *psc_ctl_arith_variant(void)
{
    return psc_arith_variant();
}

const char *psc_ctl_crc_variant(void)
{
    return psc_crc_variant();
}

/* The environment has been read when the library was loaded; what it asks for in vain is said here. */
static bool variants_are_there(char *text)
{
    if (psc_arith_refused() != NULL)
        snprintf(
            text, PSC_CTL_TEXT_BYTES,
            "PASCALINE_ARITH is \"%s\", which is not among \"scalar\", \"avx2\" and \"avx512\" or not for "
            "this CPU, whose best is \"%s\": choose another or unset it",
            psc_arith_refused(), psc_arith_variant());
    else if (psc_crc_refused() != NULL)
        snprintf(text, PSC_CTL_TEXT_BYTES,
                 "PASCALINE_CRC is \"%s\", which is not among \"slicing\", \"pclmul\", \"vpclmul_each\" and "
                 "\"vpclmul\" or not for this CPU, whose best is \"%s\": choose another or unset it",
                 psc_crc_refused(), psc_crc_variant());
    return psc_arith_refused() == NULL && psc_crc_refused() == NULL;
}

/* ---- The EAL thread ---- */

static struct psc_io_config io_config(const struct psc_ctl_config *config)
{
    struct psc_io_config io = {.port_count = config->port_count,
                               .lane_count = config->lane_count,
                               .huge_pages = config->huge_pages != 0,
                               .memory_mib = config->memory_mib,
                               .idle_sleep_us = config->idle_sleep_us,
                               .roce_mtu = config->roce_mtu};

    for (uint32_t i = 0; i < config->port_count; i++)
        io.ports[i] =
            (struct psc_io_port_config){.devargs = config->ports[i].devargs,
                                        .pci = config->ports[i].pci != 0,
                                        .rx_ring_packets = (uint16_t)config->ports[i].rx_ring_packets,
                                        .tx_ring_packets = (uint16_t)config->ports[i].tx_ring_packets,
                                        .dispatcher_core = config->ports[i].dispatcher_core};
    for (uint32_t i = 0; i < config->lane_count; i++) {
        const struct psc_ctl_lane_config *from = &config->lanes[i];

        io.lanes[i] = (struct psc_io_lane_config){
            .core = from->core, .port = from->port, .prefix_bits = (uint8_t)from->prefix_bits};
        memcpy(io.lanes[i].ip.b, from->address, sizeof io.lanes[i].ip.b);
        memcpy(io.lanes[i].gateway.b, from->gateway, sizeof io.lanes[i].gateway.b);
    }
    io.steering = (enum psc_io_steering)config->steering;
    io.lane.local.ip = io.lanes[0].ip; /* its family is every lane's */
    io.lane.local.vlan = (uint16_t)config->vlan;
    io.lane.dscp = (uint8_t)config->dscp;
    io.lane.max_unacked_packets = (uint16_t)config->max_unacked_packets;
    io.lane.retransmit_ns = 4096ull << config->retransmit_exponent;
    io.lane.retries = (uint8_t)config->retries;
    io.lane.progress_ns = config->progress_us * 1000ull;
    io.lane.waiting_event_ns = config->waiting_event_us * 1000ull;
    return io;
}

static void set_state(int state)
{
    pthread_mutex_lock(&psc_ctl.lock);
    psc_ctl.eal_state = (unsigned)state;
    pthread_cond_broadcast(&psc_ctl.changed);
    pthread_mutex_unlock(&psc_ctl.lock);
}

/* Fetches losses until the control thread wishes `wish`. */
static void watch_until(int wish)
{
    pthread_mutex_lock(&psc_ctl.lock);
    while ((int)psc_ctl.eal_wish < wish) {
        struct timespec until;

        psc_io_fetch_losses(psc_ctl.io);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += WATCH_NS;
        if (until.tv_nsec >= 1000000000) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000;
        }
        pthread_cond_timedwait(&psc_ctl.changed, &psc_ctl.lock, &until);
    }
    pthread_mutex_unlock(&psc_ctl.lock);
}

static void *eal_main(void *unused)
{
    struct psc_lane_stats *stats[PSC_CTL_MAX_LANES] = {NULL};
    struct psc_io_config config = io_config(&psc_ctl.config);

    (void)unused;
    for (uint32_t i = 0; i < config.lane_count; i++)
        stats[i] = psc_segment_lane(psc_ctl.segment, i);
    psc_ctl.io = psc_io_start(&config, stats, &psc_ctl.error);
    if (psc_ctl.io == NULL) {
        set_state(PSC_EAL_FAILED);
        return NULL;
    }
    set_state(PSC_EAL_RUNNING);
    watch_until(PSC_EAL_STOP);
    psc_io_stop(psc_ctl.io);
    set_state(PSC_EAL_STOPPED);
    watch_until(PSC_EAL_CLOSE);
    psc_io_close(psc_ctl.io);
    psc_ctl.io = NULL;
    return NULL;
}

/* ---- The control thread ---- */

static void free_tables(void)
{
    free(psc_ctl.entries);
    free(psc_ctl.qpns);
    psc_ctl.entries = NULL;
    psc_ctl.qpns = NULL;
    if (psc_ctl.segment != NULL)
        psc_segment_close(psc_ctl.segment);
    psc_ctl.segment = NULL;
}

static enum psc_ctl_code make_tables(char *text)
{
    psc_ctl.entries = calloc(psc_ctl.config.max_jobs, sizeof *psc_ctl.entries);
    psc_ctl.qpns = calloc(psc_ctl.config.lane_count, sizeof *psc_ctl.qpns);
    if (psc_ctl.entries == NULL || psc_ctl.qpns == NULL) {
        snprintf(text, PSC_CTL_TEXT_BYTES, "no memory for the tables of %u jobs", psc_ctl.config.max_jobs);
        return PSC_CTL_MEMORY;
    }
    psc_ctl.segment =
        psc_segment_create(psc_ctl.config.stats_path, psc_ctl.config.lane_count, psc_ctl.config.job_rows);
    if (psc_ctl.segment == NULL) {
        snprintf(text, PSC_CTL_TEXT_BYTES, "cannot create the statistics file %s: %s",
                 psc_ctl.config.stats_path, strerror(errno));
        return PSC_CTL_STATS_FILE;
    }
    return PSC_CTL_OK;
}

static enum psc_ctl_code start_eal_thread(char *text)
{
    int rc = pthread_create(&psc_ctl.eal_thread, NULL, eal_main, NULL);

    if (rc != 0) {
        snprintf(text, PSC_CTL_TEXT_BYTES, "the EAL thread cannot be created: %s", strerror(rc));
        return PSC_CTL_EAL;
    }
    pthread_mutex_lock(&psc_ctl.lock);
    while (psc_ctl.eal_state == PSC_EAL_STARTING)
        pthread_cond_wait(&psc_ctl.changed, &psc_ctl.lock);
    pthread_mutex_unlock(&psc_ctl.lock);
    if (psc_ctl.eal_state == PSC_EAL_RUNNING)
        return PSC_CTL_OK;
    pthread_join(psc_ctl.eal_thread, NULL);
    snprintf(text, PSC_CTL_TEXT_BYTES, "%s", psc_ctl.error.text);
    return (enum psc_ctl_code)psc_ctl.error.status;
}

/* Every lane's port is there, and every port has a lane. */
static bool lanes_are_sane(const struct psc_ctl_config *config)
{
    uint32_t ports = 0;

    if (config->port_count == 0 || config->port_count > PSC_CTL_MAX_PORTS || config->lane_count == 0 ||
        config->lane_count > PSC_CTL_MAX_LANES || config->steering >= PSC_CTL_STEER_COUNT)
        return false;
    for (uint32_t i = 0; i < config->lane_count; i++) {
        if (config->lanes[i].port >= config->port_count)
            return false;
        ports |= 1u << config->lanes[i].port;
    }
    return ports == (1u << config->port_count) - 1;
}

static bool config_is_sane(const struct psc_ctl_config *config)
{
    return lanes_are_sane(config) && config->max_jobs > 0 &&
           config->job_rows >= config->max_jobs * config->lane_count && config->retransmit_exponent > 0 &&
           config->retransmit_exponent < 32 &&
           memchr(config->stats_path, '\0', sizeof config->stats_path) != NULL;
}

enum psc_ctl_code psc_ctl_start(const struct psc_ctl_config *config, char *text)
{
    enum psc_ctl_code code;

    if (!variants_are_there(text))
        return PSC_CTL_ARGUMENT;
    if (psc_ctl.started_once) {
        snprintf(text, PSC_CTL_TEXT_BYTES, "the data plane starts once per process");
        return PSC_CTL_STATE;
    }
    if (!config_is_sane(config)) {
        snprintf(text, PSC_CTL_TEXT_BYTES,
                 "1 to %d ports with a lane each, 1 to %d lanes, and a job at least with a row for each lane "
                 "can be",
                 PSC_CTL_MAX_PORTS, PSC_CTL_MAX_LANES);
        return PSC_CTL_ARGUMENT;
    }
    psc_ctl.config = *config;
    code = make_tables(text);
    if (code == PSC_CTL_OK) {
        psc_ctl.started_once = true;
        code = start_eal_thread(text);
    }
    if (code != PSC_CTL_OK)
        free_tables();
    return code;
}

void psc_ctl_heartbeat(void)
{
    if (psc_ctl.segment != NULL)
        psc_segment_heartbeat(psc_ctl.segment);
    psc_ctl_freeze_owed();
}

static void wish(int what)
{
    pthread_mutex_lock(&psc_ctl.lock);
    psc_ctl.eal_wish = (unsigned)what;
    pthread_cond_broadcast(&psc_ctl.changed);
    pthread_mutex_unlock(&psc_ctl.lock);
}

void psc_ctl_stop(void)
{
    if (psc_ctl.io == NULL)
        return;
    wish(PSC_EAL_STOP);
    pthread_mutex_lock(&psc_ctl.lock);
    while (psc_ctl.eal_state != PSC_EAL_STOPPED)
        pthread_cond_wait(&psc_ctl.changed, &psc_ctl.lock);
    pthread_mutex_unlock(&psc_ctl.lock);
    for (uint32_t i = 0; i < psc_ctl.config.max_jobs; i++)
        if (psc_ctl.entries[i].number != 0)
            psc_ctl_entry_free(&psc_ctl.entries[i]);
    wish(PSC_EAL_CLOSE);
    pthread_join(psc_ctl.eal_thread, NULL);
    free_tables();
}
