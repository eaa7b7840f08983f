/* EAL: its arguments from our configuration, its start, and its messages. EAL starts once per process and
 * pins the thread that starts it; ctl/ gives it a thread of its own. */
#include "psc_io_internal.h"

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_ARGUMENTS  32
#define ARGUMENT_BYTES 512

/* EAL keeps pointers into argv for as long as the process lives. */
static char argument_text[MAX_ARGUMENTS][ARGUMENT_BYTES];
static char *arguments[MAX_ARGUMENTS + 1];
static int argument_count;

bool psc_io_fail(struct psc_io_error *error, enum psc_io_status status, const char *format, ...)
{
    va_list values;

    error->status = status;
    va_start(values, format);
    vsnprintf(error->text, sizeof error->text, format, values);
    va_end(values);
    return false;
}

/* ---- Messages. EAL and drivers print the cause of a failure to stderr, partly past their own log; our user
 * gets one sentence. So stderr goes to memory while something may fail that we report ourselves. ---- */

static int saved_stderr = -1, captured_fd = -1;

void psc_io_capture_begin(void)
{
    captured_fd = memfd_create("psc_eal_messages", MFD_CLOEXEC);
    if (captured_fd < 0)
        return;
    fflush(stderr);
    saved_stderr = dup(STDERR_FILENO);
    dup2(captured_fd, STDERR_FILENO);
}

void psc_io_capture_end(char *last_line, size_t bytes)
{
    char tail[2048] = "";
    char *line, *rest = tail;
    off_t end;

    last_line[0] = '\0';
    if (captured_fd < 0)
        return;
    fflush(stderr);
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    end = lseek(captured_fd, 0, SEEK_END);
    if (pread(captured_fd, tail, sizeof tail - 1, end > 2047 ? end - 2047 : 0) < 0)
        tail[0] = '\0';
    close(captured_fd);
    captured_fd = -1;
    while ((line = strsep(&rest, "\n")) != NULL)
        if (line[0] != '\0')
            snprintf(last_line, bytes, "%s", line);
}

/* ---- Arguments ---- */

__attribute__((format(printf, 1, 2))) static void add_argument(const char *format, ...)
{
    va_list values;

    if (argument_count == MAX_ARGUMENTS)
        return; /* the fixed ones and one per port: far fewer */
    va_start(values, format);
    vsnprintf(argument_text[argument_count], ARGUMENT_BYTES, format, values);
    va_end(values);
    arguments[argument_count] = argument_text[argument_count];
    argument_count++;
}

/* A list of lcores as EAL wants it, and the CPUs that may be named in it. */
struct lcores {
    char list[ARGUMENT_BYTES];
    size_t used;
    cpu_set_t allowed;
};

static bool add_lcore(struct lcores *lcores, unsigned lcore, uint32_t cpu, const char *key,
                      struct psc_io_error *error)
{
    if (cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &lcores->allowed))
        return psc_io_fail(error, PSC_IO_LANE_CORE, "%s names CPU %u, this process may use only CPUs %.*s",
                           key, cpu, (int)strcspn(lcores->list + 3, ")"), lcores->list + 3);
    lcores->used += (size_t)snprintf(lcores->list + lcores->used, sizeof lcores->list - lcores->used,
                                     ",%u@%u", lcore, cpu);
    if (lcores->used < sizeof lcores->list)
        return true;
    return psc_io_fail(error, PSC_IO_LANE_CORE, "the list of lcores exceeds %zu bytes", sizeof lcores->list);
}

/* Lcore 0 is EAL's main thread and may use every CPU of the process; every lane and dispatcher is an lcore on
 * its own CPU. So one or two CPUs are enough: the main thread sleeps nearly always. */
static bool add_lcores(const struct psc_io_config *config, struct psc_io_error *error)
{
    struct lcores lcores = {.list = ""};

    if (sched_getaffinity(0, sizeof lcores.allowed, &lcores.allowed) != 0)
        return psc_io_fail(error, PSC_IO_LANE_CORE, "sched_getaffinity fails");
    for (unsigned cpu = 0; cpu < CPU_SETSIZE && lcores.used < sizeof lcores.list - 16; cpu++)
        if (CPU_ISSET(cpu, &lcores.allowed))
            lcores.used += (size_t)snprintf(lcores.list + lcores.used, sizeof lcores.list - lcores.used,
                                            "%s%u", lcores.used == 0 ? "0@(" : ",", cpu);
    lcores.used += (size_t)snprintf(lcores.list + lcores.used, sizeof lcores.list - lcores.used, ")");
    for (uint32_t i = 0; i < config->lane_count; i++)
        if (!add_lcore(&lcores, PSC_IO_LANE_LCORE(i), config->lanes[i].core, "lanes.cores", error))
            return false;
    for (uint32_t i = 0; i < config->port_count; i++)
        if (config->ports[i].dispatcher_core != PSC_IO_NO_CORE &&
            !add_lcore(&lcores, PSC_IO_DISPATCHER_LCORE(i), config->ports[i].dispatcher_core,
                       "port.dispatcher_core", error))
            return false;
    add_argument("--lcores=%s", lcores.list);
    add_argument("--main-lcore=0");
    return true;
}

static void add_devices(const struct psc_io_config *config)
{
    uint32_t pci = 0;

    for (uint32_t i = 0; i < config->port_count; i++)
        if (config->ports[i].pci) {
            add_argument("-a%s", config->ports[i].devargs);
            pci++;
        }
    /* Else EAL would take every NIC on the machine that is bound to a DPDK driver. */
    if (pci == 0)
        add_argument("--no-pci");
}

/* A memif that shares our buffers with its peer instead of copying them hands over one file. */
static void add_segments(const struct psc_io_config *config)
{
    for (uint32_t i = 0; i < config->port_count; i++)
        if (psc_io_memif_is(config->ports[i].devargs) && strstr(config->ports[i].devargs, "zero-copy=yes")) {
            add_argument("--single-file-segments");
            return;
        }
}

bool psc_io_eal_start(const struct psc_io_config *config, struct psc_io_error *error)
{
    char cause[256];
    int rc;

    add_argument("pascaline");
    if (!add_lcores(config, error))
        return false;
    if (config->huge_pages)
        add_argument("--in-memory");
    else {
        add_argument("--no-huge");
        add_argument("--no-shconf");
    }
    add_argument("-m%u", config->memory_mib);
    /* Slots are sent where they lie; with physical IO addresses every payload would need a page look-up. */
    add_argument("--iova-mode=va");
    add_argument("--no-telemetry");
    add_argument("--log-level=error");
    add_segments(config);
    add_devices(config);
    psc_io_capture_begin();
    rc = rte_eal_init(argument_count, arguments);
    psc_io_capture_end(cause, sizeof cause);
    if (rc >= 0)
        return true;
    return psc_io_fail(error, PSC_IO_EAL, "EAL does not start: %s (%s)", rte_strerror(rte_errno), cause);
}
