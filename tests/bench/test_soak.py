"""The soak for a few seconds; and what it says when something is planted that it is there to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.appliance.rack import library
from tests.bench.load import ROOT, Wishes, can_run
from tests.bench.soak import WARM_UP_JOBS, soak, soaking

pytestmark = pytest.mark.skipif(not can_run(), reason="namespaces need root, the load generator DPDK")

EVERY_BURST_LEAKS = """
#include <rte_mbuf.h>

/* Of every hundredth burst the first buffer is never given back. */
void rte_pktmbuf_free_bulk(struct rte_mbuf **mbufs, unsigned int count)
{
    static unsigned int bursts;

    for (unsigned int i = count > 0 && ++bursts % 100 == 0; i < count; i++)
        rte_pktmbuf_free(mbufs[i]);
}
"""

MEMORY_LEAKS = """
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *leak(void *unused)
{
    for (;;) {
        memset(malloc(1 << 16), 1, 1 << 16);
        usleep(20000);
    }
    return unused;
}

__attribute__((constructor)) static void start(void)
{
    pthread_t thread;

    pthread_create(&thread, NULL, leak, NULL);
}
"""

ORS_INSTEAD = f"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include "{ROOT}/dpdk_c/arith/psc_arith.h"

const struct psc_op_row *psc_op_rows(void)
{{
    static struct psc_op_row rows[PSC_OP_COUNT];
    void *library = dlopen("libpascaline.so.0", RTLD_NOW | RTLD_NOLOAD);
    const struct psc_op_row *(*real)(void) = (const struct psc_op_row *(*)(void))dlsym(library, "psc_op_rows");

    memcpy(rows, real(), sizeof rows);
    rows[PSC_OP_SUM_I32] = rows[PSC_OP_OR_U32];
    return rows;
}}
"""


@pytest.mark.parametrize(("wire", "loss"), [("memif", 0), ("af_packet", 500)])
def test_nothing_is_objected_to(wire: str, loss: int) -> None:
    result = soak(wire, loss, 0, job_seconds=0.3, least_jobs=WARM_UP_JOBS, least_lost=min(loss, 1))
    assert result["objections"] == []
    assert (
        result["jobs"] >= WARM_UP_JOBS
    )  # one loss needs more of them where few packets are sent in their time
    assert result["rounds"] >= WARM_UP_JOBS
    assert result["load"]["wrong_packets"] == 0
    assert (result["load"]["lost_rx_packets"] + result["load"]["lost_tx_packets"] > 0) == (loss > 0)


@pytest.mark.parametrize(
    ("source", "jobs", "words"),
    [
        (EVERY_BURST_LEAKS, 2, "the appliance holds"),
        (MEMORY_LEAKS, WARM_UP_JOBS + 2, "the memory of the appliance process grew"),
        (ORS_INSTEAD, 1, "packets of wrong sums, the first: rank"),
    ],
    ids=["mbufs", "memory", "sums"],
)
def test_what_is_planted_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, jobs: int, words: str
) -> None:
    monkeypatch.setenv("CPATH", ":".join(f"{ROOT}/dpdk_c/{room}" for room in ("contract", "roce", "arith")))
    planted = {"LD_PRELOAD": str(library(tmp_path, source))}
    result = soak("af_packet", 0, seconds=0, job_seconds=0.5, environment=planted, least_jobs=jobs)
    assert any(words in objection for objection in result["objections"]), result["objections"]


def test_a_memif_s_ring_may_be_full() -> None:
    """Its driver does not survive a chain that finds no room, so results leave in one piece."""
    with soaking("memif", 0, ring_log2=6) as run:
        run.job(0, Wishes(ranks=3, window=2, chunk_bytes=32768), 1)
        assert run.judge()["rounds"] > 0
        assert run.objections == []
