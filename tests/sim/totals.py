"""Many runs added up: the figures, the distribution that the suite promises, and its part of the summary."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Self

from .runner import Record, names

ADDED = (
    *("rounds_begun", "rounds_summed", "rounds_void", "rounds_missed", "undetectable"),
    *("epochs", "resumed", "redelivered", "replayed"),
    *("frames", "lives", "own_errors", "virtual_ns", "wrapped", "slots_reused", "mild"),
)
WRONG = ("sum", "immediate", "torn", "a slot is", "a PSN", "published", "outside the results")
"""What in a rule's name makes its violation a wrong sum: bytes that are not what they must be, or too soon."""
RESUMING = ("resumed", "redelivered", "replayed")
"""What epochs are there for: seeds without it prove nothing about them."""
FEW = 200
"""Fewer seeds prove nothing about the distribution."""


@dataclass
class Totals:
    """Histograms are by the value as text, so that they survive JSON."""

    seeds: int = 0
    crashes: int = 0
    hangs: int = 0
    hash: int = 0
    sums: dict[str, int] = field(default_factory=dict)
    by_rule: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    histograms: dict[str, dict[str, int]] = field(default_factory=dict)
    seeds_with: dict[str, int] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)

    def add(self, record: Record, rules: list[str], troubles: list[str]) -> None:
        """One run."""
        self.seeds += 1
        if "died" in record:
            self.crashes += record["died"] == "crash"
            self.hangs += record["died"] == "hang"
            self._find(f"SEED={record['seed']}: {record['died']}, {record['text']}")
            return
        self.hash = (self.hash + int(record["hash"], 16)) % 2**64
        if record["rule"]:
            rule = rules[record["rule"]]
            _count(self.by_rule, rule)
            self._find(f"SEED={record['seed']}: not kept: {rule} ({record['text']})")
        for key in ADDED:
            _count(self.sums, key, record[key])
        kinds = [name for name, times in zip(troubles, record["troubles"], strict=True) if times]
        _count(self._histogram("workers"), str(record["workers"]))
        _count(self._histogram("rounds"), str(record["rounds_begun"]))
        _count(self._histogram("kinds of fault"), str(len(kinds)))
        _count(self.seeds_with, "our own endpoint", record["model_workers"] < record["workers"])
        _count(self.seeds_with, "the model", record["model_workers"] > 0)
        for what in RESUMING:
            _count(self.seeds_with, what, record[what] > 0)
        for name, times in zip(troubles, record["troubles"], strict=True):
            _count(self.seeds_with, name, times > 0)
            _count(self.times, name, times)
        for number, times in enumerate(record["faults"]):
            if times:
                _count(self.faults, str(number), times)

    def _find(self, sentence: str) -> None:
        if len(self.findings) < 20:
            self.findings.append(sentence)

    def _histogram(self, name: str) -> dict[str, int]:
        return self.histograms.setdefault(name, {})

    def extend(self, records: Iterable[Record]) -> None:
        """Many runs."""
        rules, troubles = names("rule"), names("trouble")
        for record in records:
            self.add(record, rules, troubles)

    @property
    def violations(self) -> int:
        """Seeds with any finding."""
        return self.crashes + sum(self.by_rule.values()) + self.hangs

    def median(self, name: str) -> int:
        """Of a histogram: the smallest value that at least half of the seeds do not exceed."""
        counts = self.histograms.get(name, {})
        rest = sum(counts.values()) / 2
        for value in sorted(counts, key=int):
            rest -= counts[value]
            if rest <= 0:
                return int(value)
        return 0

    def percent(self, name: str) -> float:
        """Of the seeds that were, or met, this."""
        return 100 * self.seeds_with.get(name, self.sums.get(name, 0)) / max(self.seeds, 1)

    def broken_promises(self) -> Iterator[str]:
        """How these seeds are not what the suite promises to be."""
        if self.seeds < FEW:
            return
        for name, least in (("workers", 3), ("rounds", 50), ("kinds of fault", 3)):
            if self.median(name) < least:
                yield f"the median seed has {self.median(name)} {name}, {least} are promised"
        for name, least in (
            ("slots_reused", 50),
            ("wrapped", 30),
            ("our own endpoint", 30),
            ("the model", 30),
            *((what, 20) for what in RESUMING),
        ):
            if self.percent(name) < least:
                yield f"{self.percent(name):.1f} % of seeds have {name}, {least} % are promised"

    def summary(self) -> dict[str, int | str]:
        """This suite's keys of the summary."""
        by_words = Counter[str]()
        for rule, seeds in self.by_rule.items():
            by_words["wrong"] += seeds * any(words in rule for words in WRONG)
            by_words["hang"] += seeds * (rule == "every wait ends")
            by_words["needless"] += seeds * rule.startswith("no error where")
        counts = ("rounds_summed", "rounds_void", "rounds_missed", "undetectable", *RESUMING)
        return {
            "seeds": self.seeds,
            **{key: self.sums.get(key, 0) for key in counts},
            "wrong_sums": by_words["wrong"],
            "hangs": self.hangs + by_words["hang"],
            "crashes": self.crashes,
            "needless_errors": by_words["needless"],
            "sim_violations": self.violations,
            "sim_hash": f"{self.hash:016x}",
        }

    def report(self) -> Iterator[str]:
        """Lines for people."""
        sums = Counter(self.sums)
        yield (
            f"{self.seeds} seeds, {sums['lives']} lives of {sums['epochs']} epochs, {sums['frames']} frames,"
            f" {sums['virtual_ns'] / 1e9:.0f} s of virtual time, hash {self.hash:016x}"
        )
        yield (
            f"rounds: {sums['rounds_summed']} summed, {sums['rounds_void']} void ({sums['rounds_missed']} of them"
            " only for a rank out of reach as its job ended),"
            f" {sums['undetectable']} wrong after tampering that nobody can see"
        )
        yield (
            f"epochs: {sums['resumed']} resumed, {sums['redelivered']} results delivered again, {sums['replayed']}"
            " contributions written again"
        )
        medians = ", ".join(f"{self.median(name)} {name}" for name in ("workers", "rounds", "kinds of fault"))
        yield f"median seed: {medians}"
        shares = ("mild", "slots_reused", "wrapped", "our own endpoint", "the model", *RESUMING)
        yield "seeds: " + ", ".join(f"{name} {self.percent(name):.1f} %" for name in shares)
        for name, times in self.times.items():
            yield f"  {name:<16} in {self.percent(name):5.1f} % of seeds, {times} times"
        yield f"lives ended, by fault number: {self.faults}; ranks that found out by themselves: {sums['own_errors']}"
        yield from self.findings

    def to_json(self) -> str:
        """For a later run to go on with."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What to_json wrote."""
        return cls(**json.loads(text))


def _count(counts: dict[str, int], key: str, by: int = 1) -> None:
    counts[key] = counts.get(key, 0) + by
