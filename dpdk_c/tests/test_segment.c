/* The statistics segment as a reader sees it: the file alone, by the contract's offsets. */
#include "support.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "psc_segment.h"

#define LANES 2u
#define ROWS  3u

static char path[64];

static int make_path(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/psc_test_segment_%d", (int)getpid());
    return 0;
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(path);
}

/* Maps the file read-only, as an exporter does. */
static const struct psc_stats_header *map_file(void)
{
    size_t bytes = sizeof(struct psc_stats_header) + LANES * sizeof(struct psc_lane_stats) +
                   ROWS * sizeof(struct psc_job_stats);
    int fd = open(path, O_RDONLY);
    const struct psc_stats_header *header;
    struct stat file;

    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &file), 0);
    assert_int_equal(file.st_size, bytes);
    assert_int_equal(file.st_mode & 0777, 0644);
    header = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(header != MAP_FAILED);
    close(fd);
    assert_int_equal(header->magic, PSC_STATS_MAGIC);
    assert_int_equal(header->segment_bytes, bytes);
    return header;
}

static const struct psc_job_stats *row_at(const struct psc_stats_header *header, uint32_t i)
{
    return (const struct psc_job_stats *)((const char *)header + header->job_offset_bytes +
                                          i * header->job_stride_bytes);
}

static struct psc_job_stats *claim(struct psc_segment *segment, const char *name, uint32_t epoch)
{
    struct psc_job_row_identity identity = {
        .name = name, .world_size = 4, .epoch = epoch, .lane = 1, .start_time_us = psc_segment_now_us()};

    return psc_segment_claim_row(segment, &identity);
}

static void a_reader_finds_lanes_and_rows_by_the_header(void **state)
{
    struct psc_segment *segment = psc_segment_create(path, LANES, ROWS);
    const struct psc_stats_header *header;

    (void)state;
    assert_non_null(segment);
    header = map_file();
    psc_segment_lane(segment, 1)->rx_packets = 77;
    assert_int_equal(((const struct psc_lane_stats *)((const char *)header + header->lane_offset_bytes +
                                                      header->lane_stride_bytes))
                         ->rx_packets,
                     77);
    assert_non_null(claim(segment, "job", 9));
    assert_string_equal(row_at(header, 0)->name, "job");
    assert_int_equal(row_at(header, 0)->state, PSC_JOB_ROW_JOINING);
    assert_int_equal(row_at(header, 0)->epoch, 9);
    assert_int_equal(row_at(header, 0)->generation % 2, 0);
    assert_int_equal(header->stopped, 0);
    psc_segment_close(segment);
    assert_int_equal(header->stopped, 1);
}

static void a_new_segment_leaves_the_older_one_to_its_readers(void **state)
{
    struct psc_segment *older = psc_segment_create(path, LANES, ROWS);
    const struct psc_stats_header *seen = map_file();
    struct psc_segment *newer = psc_segment_create(path, LANES, ROWS);

    (void)state;
    psc_segment_lane(newer, 0)->rx_packets = 1;
    assert_int_equal(((const struct psc_lane_stats *)(seen + 1))->rx_packets, 0);
    psc_segment_close(older);
    assert_int_equal(map_file()->stopped, 0);
    psc_segment_close(newer);
}

static void a_job_that_comes_back_goes_on_in_its_row(void **state)
{
    struct psc_segment *segment = psc_segment_create(path, LANES, ROWS);
    struct psc_job_stats *row = claim(segment, "job", 1);

    (void)state;
    row->contribution_bytes = 1000;
    psc_segment_set_row_state(row, PSC_JOB_ROW_ENDED);
    assert_ptr_not_equal(claim(segment, "other", 2), row);
    assert_ptr_equal(claim(segment, "job", 3), row);
    assert_int_equal(row->contribution_bytes, 1000);
    assert_int_equal(row->epoch, 3);
    psc_segment_close(segment);
}

static void an_epoch_is_joined_anew_in_the_same_row(void **state)
{
    struct psc_segment *segment = psc_segment_create(path, LANES, ROWS);
    struct psc_job_stats *row = claim(segment, "job", 1);
    uint64_t generation = row->generation;

    (void)state;
    row->rounds_completed = 7;
    psc_segment_set_row_state(row, PSC_JOB_ROW_READY);
    psc_segment_begin_epoch(row, 2);
    assert_int_equal(row->epoch, 2);
    assert_int_equal(row->state, PSC_JOB_ROW_JOINING);
    assert_int_equal(row->rounds_completed, 7);
    assert_int_equal(row->generation, generation + 4);
    psc_segment_close(segment);
}

static void the_row_that_ended_longest_ago_is_taken_from_zero(void **state)
{
    struct psc_segment *segment = psc_segment_create(path, LANES, ROWS);
    struct psc_job_stats *rows[ROWS] = {claim(segment, "a", 1), claim(segment, "b", 2),
                                        claim(segment, "c", 3)};

    (void)state;
    assert_null(claim(segment, "d", 4));
    rows[1]->result_bytes = 5;
    rows[1]->start_time_us -= 10;
    psc_segment_set_row_state(rows[2], PSC_JOB_ROW_ENDED);
    psc_segment_set_row_state(rows[1], PSC_JOB_ROW_ENDED);
    assert_ptr_equal(claim(segment, "d", 4), rows[1]);
    assert_string_equal(rows[1]->name, "d");
    assert_int_equal(rows[1]->result_bytes, 0);
    psc_segment_close(segment);
}

static void a_path_that_cannot_be_says_so(void **state)
{
    (void)state;
    assert_null(psc_segment_create("/proc/nowhere/stats", LANES, ROWS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_reader_finds_lanes_and_rows_by_the_header, make_path, remove_path),
        cmocka_unit_test_setup_teardown(a_new_segment_leaves_the_older_one_to_its_readers, make_path,
                                        remove_path),
        cmocka_unit_test_setup_teardown(a_job_that_comes_back_goes_on_in_its_row, make_path, remove_path),
        cmocka_unit_test_setup_teardown(an_epoch_is_joined_anew_in_the_same_row, make_path, remove_path),
        cmocka_unit_test_setup_teardown(the_row_that_ended_longest_ago_is_taken_from_zero, make_path,
                                        remove_path),
        cmocka_unit_test(a_path_that_cannot_be_says_so),
    };
    return cmocka_run_group_tests_name("segment", tests, NULL, NULL);
}
