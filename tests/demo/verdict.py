"""What the demonstration claims, and what makes each claim false. Pure: facts in, sentences out."""

from __future__ import annotations

from dataclasses import dataclass

ACCURACY_AT_LEAST = 0.93
ACCURACY_APART_AT_MOST = {"f32": 0.01, "thc": 0.02}
"""From Gloo's. With thc 0.0083 (three images of 360) was the most of 23 pairs of trainings: 2 and 4 workers, hidden
layers of 32 and 8192, up to twelve seeds."""
CODECS = tuple(ACCURACY_APART_AT_MOST)
PARAMETERS_APART_AT_MOST = 1e-3
"""With f32 and more than two workers, whose sums depend on the order: 1e-6 was measured for 4 and 8 workers after 200
steps."""


@dataclass(frozen=True)
class Facts:
    """One demonstration; the fields are the keys of demo.json."""

    link: str
    """"rxe-native" or "rxe-vm"."""
    codec: str
    workers: int
    steps: int
    loss_first: float
    loss_last: float
    accuracy: float
    """On held-out images, of the model whose gradients the appliance added."""
    accuracy_gloo: float
    reference: str
    """The training that this one must equal: "gloo", or with a codec that leaves something out "emulated"."""
    max_abs_diff: float
    """Largest difference of a parameter from the reference's."""
    bit_identical: bool
    """Whether all ranks ended with the same bits."""
    bytes_added: int
    """By the appliance's counter of contribution bytes."""
    bytes_expected: int
    """Of DDP's bucket sizes, over all steps and ranks, as the codec sends them; scales included."""
    result_bytes: int
    """By the appliance's counter of result bytes."""
    result_bytes_expected: int
    """As `bytes_expected`."""


def objections(facts: Facts) -> list[str]:
    """Sentences about every claim that is false; none: the demonstration holds."""
    found = []
    for done, counted, expected in (
        ("added", facts.bytes_added, facts.bytes_expected),
        ("wrote back", facts.result_bytes, facts.result_bytes_expected),
    ):
        if counted != expected:
            found.append(
                f"the appliance {done} {counted} bytes and DDP's buckets in {facts.codec} make {expected}: "
                "some gradients took another way or were counted twice"
            )
    if not facts.bit_identical:
        found.append("the ranks ended with different parameters: somebody got another sum")
    # Accuracy does not notice a wrong sum: one added to an element of every packet trained to 0.983. Parameters do.
    if not facts.max_abs_diff <= (apart_at_most := _parameters_apart_at_most(facts)):
        found.append(
            f"parameters are {facts.max_abs_diff:g} from those of the training over {facts.reference}, the order of "
            f"{facts.workers} additions explains {apart_at_most:g}: some sum was wrong"
        )
    if not facts.accuracy >= ACCURACY_AT_LEAST:
        found.append(f"accuracy {facts.accuracy:.3f} is below {ACCURACY_AT_LEAST}")
    if not abs(facts.accuracy - facts.accuracy_gloo) <= (apart := ACCURACY_APART_AT_MOST[facts.codec]):
        found.append(
            f"accuracy {facts.accuracy:.3f} is more than {apart} from Gloo's {facts.accuracy_gloo:.3f}"
        )
    return found


def _parameters_apart_at_most(facts: Facts) -> float:
    """From the reference's.

    thc's sums are integers, and the emulated link's must be the appliance's. As floating point, a + b is b + a and
    halving is exact: with two workers Gloo must have found the same bits.
    """
    return PARAMETERS_APART_AT_MOST if facts.reference == "gloo" and facts.workers > 2 else 0.0
