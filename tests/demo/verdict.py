"""What the demonstration claims, and what makes each claim false. Pure: facts in, sentences out."""

from __future__ import annotations

from dataclasses import dataclass

ACCURACY_AT_LEAST = 0.93
ACCURACY_APART_AT_MOST = 0.01


@dataclass(frozen=True)
class Facts:
    """One demonstration; the fields are the keys of demo.json."""

    link: str
    """"rxe-native" or "rxe-vm"."""
    workers: int
    steps: int
    loss_first: float
    loss_last: float
    accuracy: float
    """On held-out images, of the model whose gradients the appliance added."""
    accuracy_gloo: float
    max_abs_diff: float
    """Largest difference of a parameter between the two trainings."""
    bit_identical: bool
    """Whether all ranks ended with the same bits."""
    bytes_added: int
    """By the appliance's counter of contribution bytes."""
    bytes_expected: int
    """By the training script: DDP's bucket sizes, over all steps and ranks."""


def objections(facts: Facts) -> list[str]:
    """Sentences about every claim that is false; none: the demonstration holds."""
    found = []
    if facts.bytes_added != facts.bytes_expected:
        found.append(
            f"the appliance added {facts.bytes_added} bytes and DDP handed over {facts.bytes_expected}: "
            "some gradients took another way or were counted twice"
        )
    if not facts.bit_identical:
        found.append("the ranks ended with different parameters: somebody got another sum")
    if facts.workers == 2 and facts.max_abs_diff != 0:
        # a + b is b + a also in floating point, and halving is exact: Gloo must have found the same bits.
        found.append(
            f"with two workers the sum has one right value, and parameters differ by {facts.max_abs_diff:g}"
        )
    if not facts.accuracy >= ACCURACY_AT_LEAST:
        found.append(f"accuracy {facts.accuracy:.3f} is below {ACCURACY_AT_LEAST}")
    if not abs(facts.accuracy - facts.accuracy_gloo) <= ACCURACY_APART_AT_MOST:
        found.append(
            f"accuracy {facts.accuracy:.3f} is more than {ACCURACY_APART_AT_MOST} from Gloo's {facts.accuracy_gloo:.3f}"
        )
    return found
