"""Hypothesis draws the same examples in every run, however slow the machine; new ones are fuzzing's."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "same",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("same")
