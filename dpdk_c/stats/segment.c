/* The statistics segment as a file: made under another name, filled, and renamed to its place, so that a
 * reader never opens half a segment. Single writer per field; 64-bit stores are atomic on every machine that
 * DPDK runs on. */
#include "psc_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct psc_segment {
    struct psc_stats_header *header; /* begin of the mapping */
    uint64_t bytes;
};

uint64_t psc_segment_now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static void fill_header(struct psc_stats_header *header, uint32_t lanes, uint32_t job_rows, uint64_t bytes)
{
    header->version = PSC_STATS_VERSION;
    header->pid = (uint32_t)getpid();
    header->lanes = lanes;
    header->job_rows = job_rows;
    header->start_time_us = psc_segment_now_us();
    header->heartbeat_us = header->start_time_us;
    header->lane_offset_bytes = sizeof(struct psc_stats_header);
    header->lane_stride_bytes = sizeof(struct psc_lane_stats);
    header->job_offset_bytes =
        (uint32_t)(sizeof(struct psc_stats_header) + lanes * sizeof(struct psc_lane_stats));
    header->job_stride_bytes = sizeof(struct psc_job_stats);
    header->segment_bytes = bytes;
    __atomic_store_n(&header->magic, PSC_STATS_MAGIC, __ATOMIC_RELEASE);
}

/* Maps `bytes` of the new file and fills the header; the caller closes the descriptor. */
static void *map_new_file(int fd, uint32_t lanes, uint32_t job_rows, uint64_t bytes)
{
    void *mapping;

    if (fchmod(fd, 0644) != 0 || posix_fallocate(fd, 0, (off_t)bytes) != 0)
        return NULL;
    mapping = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED)
        return NULL;
    fill_header(mapping, lanes, job_rows, bytes);
    return mapping;
}

struct psc_segment *psc_segment_create(const char *path, uint32_t lanes, uint32_t job_rows)
{
    uint64_t bytes = sizeof(struct psc_stats_header) + lanes * sizeof(struct psc_lane_stats) +
                     job_rows * sizeof(struct psc_job_stats);
    struct psc_segment *segment = calloc(1, sizeof *segment);
    char temporary[PATH_MAX];
    int fd, saved;

    if (segment == NULL)
        return NULL;
    if (snprintf(temporary, sizeof temporary, "%s.XXXXXX", path) >= (int)sizeof temporary) {
        free(segment);
        errno = ENAMETOOLONG;
        return NULL;
    }
    fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) {
        free(segment);
        return NULL;
    }
    segment->bytes = bytes;
    segment->header = map_new_file(fd, lanes, job_rows, bytes);
    if (segment->header != NULL && rename(temporary, path) == 0) {
        close(fd);
        return segment;
    }
    saved = errno;
    unlink(temporary);
    close(fd);
    if (segment->header != NULL)
        munmap(segment->header, bytes);
    free(segment);
    errno = saved;
    return NULL;
}

void psc_segment_close(struct psc_segment *segment)
{
    psc_segment_heartbeat(segment);
    __atomic_store_n(&segment->header->stopped, 1, __ATOMIC_RELEASE);
    munmap(segment->header, segment->bytes);
    free(segment);
}

void psc_segment_heartbeat(struct psc_segment *segment)
{
    __atomic_store_n(&segment->header->heartbeat_us, psc_segment_now_us(), __ATOMIC_RELAXED);
}

struct psc_lane_stats *psc_segment_lane(struct psc_segment *segment, uint32_t lane)
{
    return (struct psc_lane_stats *)((char *)segment->header + segment->header->lane_offset_bytes) + lane;
}

/* The row to use, by preference; see the header. */
static struct psc_job_stats *choose_row(struct psc_segment *segment, const char *name, uint32_t lane)
{
    struct psc_job_stats *rows =
        (struct psc_job_stats *)((char *)segment->header + segment->header->job_offset_bytes);
    struct psc_job_stats *free_row = NULL, *oldest = NULL;

    for (uint32_t i = 0; i < segment->header->job_rows; i++) {
        struct psc_job_stats *row = &rows[i];

        if (row->state == PSC_JOB_ROW_FREE && free_row == NULL)
            free_row = row;
        if (row->state != PSC_JOB_ROW_ENDED)
            continue;
        if (row->lane == lane && strncmp(row->name, name, PSC_STATS_JOB_NAME_BYTES) == 0)
            return row;
        if (oldest == NULL || row->start_time_us < oldest->start_time_us)
            oldest = row;
    }
    return free_row != NULL ? free_row : oldest;
}

/* A reader takes a row only if `generation` was even and the same before and after. */
static void begin_change(struct psc_job_stats *row)
{
    __atomic_store_n(&row->generation, row->generation + 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

static void end_change(struct psc_job_stats *row)
{
    __atomic_store_n(&row->generation, row->generation + 1, __ATOMIC_RELEASE);
}

struct psc_job_stats *psc_segment_claim_row(struct psc_segment *segment,
                                            const struct psc_job_row_identity *identity)
{
    struct psc_job_stats *row = choose_row(segment, identity->name, identity->lane);

    if (row == NULL)
        return NULL;
    begin_change(row);
    if (row->lane != identity->lane || strncmp(row->name, identity->name, PSC_STATS_JOB_NAME_BYTES) != 0) {
        uint64_t generation = row->generation;

        memset(row, 0, sizeof *row);
        row->generation = generation;
        snprintf(row->name, sizeof row->name, "%s", identity->name);
    }
    row->state = PSC_JOB_ROW_JOINING;
    row->world_size = identity->world_size;
    row->epoch = identity->epoch;
    row->lane = identity->lane;
    row->start_time_us = identity->start_time_us;
    end_change(row);
    return row;
}

void psc_segment_begin_epoch(struct psc_job_stats *row, uint32_t epoch)
{
    begin_change(row);
    row->state = PSC_JOB_ROW_JOINING;
    row->epoch = epoch;
    end_change(row);
}

void psc_segment_set_row_state(struct psc_job_stats *row, enum psc_job_row_state state)
{
    begin_change(row);
    row->state = state;
    end_change(row);
}
