"""The names: a Snapshot becomes metric families. Names, labels and help texts are a promise to every dashboard.

Reads at scrape time and keeps nothing between scrapes but the last reason for being down, so that the log says it
once. The label of a training job is `training_job`: `job` is Prometheus's own and would be renamed on arrival.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pascaline_exporter import __version__
from pascaline_exporter.segment import STATS_VERSION, JobCounters, LaneCounters, SegmentError, Snapshot, read

_log = logging.getLogger("pascaline-exporter")


class SegmentCollector(Collector):
    """Serves the segment at `path`; `pascaline_up` is 0 while no live appliance writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last_reason: str | None = None

    def describe(self) -> Iterable[Metric]:
        """No metric: registering must not need a segment."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metric families of one scrape."""
        snapshot = self._look()
        yield GaugeMetricFamily(
            "pascaline_up",
            "Whether a live appliance writes the statistics segment.",
            value=float(snapshot is not None),
        )
        build = GaugeMetricFamily(
            "pascaline_exporter_build_info",
            "Always 1. Release of the exporter and the version of the statistics segment that it reads.",
            labels=("version", "stats_version"),
        )
        build.add_metric((__version__, str(STATS_VERSION)), 1)
        yield build
        if snapshot is not None:
            yield GaugeMetricFamily(
                "pascaline_start_time_seconds",
                "Start of the appliance since the Unix epoch, in seconds.",
                value=snapshot.start_time_s,
            )
            yield from _lane_families(snapshot.lanes)
            yield from _job_families(snapshot.jobs)

    def _look(self) -> Snapshot | None:
        try:
            snapshot = read(self._path)
        except SegmentError as error:
            if error.reason != self._last_reason:
                _log.warning("%s", error)
                self._last_reason = error.reason
            return None
        if self._last_reason is not None:
            _log.info("the statistics segment %s is live again", self._path)
            self._last_reason = None
        return snapshot


def _lane_families(lanes: list[LaneCounters]) -> Iterator[Metric]:
    simple = (
        ("receive_bytes", "Ethernet frame bytes received, without FCS."),
        ("receive_packets", "Frames received."),
        ("transmit_bytes", "Ethernet frame bytes sent, without FCS."),
        ("transmit_packets", "Frames sent."),
        ("retransmitted_packets", "Result packets and probes sent again."),
        (
            "receive_missed_packets",
            "Frames that the port dropped because the lane did not fetch them in time.",
        ),
        ("receive_no_buffer", "Times that the port had no packet buffer to receive into."),
        ("polls", "Turns of the lane's loop: a lane whose rate is 0 hangs."),
    )
    for field, help_text in simple:
        family = CounterMetricFamily(f"pascaline_lane_{field}", help_text, labels=("lane",))
        for lane in lanes:
            family.add_metric((str(lane.lane),), getattr(lane, field))
        yield family
    drops = CounterMetricFamily(
        "pascaline_lane_drops", "Received frames that were not executed.", labels=("lane", "reason")
    )
    for lane in lanes:
        for reason, count in lane.drops.items():
            drops.add_metric((str(lane.lane), reason), count)
    yield drops


def _job_families(jobs: list[JobCounters]) -> Iterator[Metric]:
    workers = GaugeMetricFamily(
        "pascaline_job_workers",
        "Workers of the training job while its rounds may run, else 0.",
        labels=("training_job",),
    )
    for job in jobs:
        workers.add_metric((job.name,), job.workers)
    yield workers
    simple = (
        (
            "contribution_bytes",
            "Gradient payload added, all workers together; retransmissions and probes excluded.",
        ),
        (
            "result_bytes",
            "Result payload sent to workers, all together; retransmissions and probes excluded.",
        ),
        ("rounds", "Rounds whose contributions were all whole."),
        (
            "faults",
            "Epochs that a fault ended: each one stopped the job, and its message is in the appliance's log.",
        ),
    )
    for field, help_text in simple:
        family = CounterMetricFamily(f"pascaline_job_{field}", help_text, labels=("training_job",))
        for job in jobs:
            family.add_metric((job.name,), getattr(job, field))
        yield family
