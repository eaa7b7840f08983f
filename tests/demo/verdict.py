"""What the demonstration claims, and what makes each claim false. Pure: facts in, sentences out."""

from __future__ import annotations

from dataclasses import dataclass

ACCURACY_AT_LEAST = 0.93
ACCURACY_APART_AT_MOST = 0.01
PARAMETERS_APART_AT_MOST = 1e-3
"""With more than two workers, whose sums depend on the order: 1e-6 was measured for 4 and 8 workers after 200 steps."""


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
    # Accuracy does not notice a wrong sum: one added to an element of every packet trained to 0.983. Parameters do.
    # a + b is b + a also in floating point, and halving is exact: with two workers Gloo must have found the same bits.
    apart_at_most = 0.0 if facts.workers == 2 else PARAMETERS_APART_AT_MOST
    if not facts.max_abs_diff <= apart_at_most:
        found.append(
            f"parameters are {facts.max_abs_diff:g} from Gloo's, the order of {facts.workers} additions explains "
            f"{apart_at_most:g}: some sum was wrong"
        )
    if not facts.accuracy >= ACCURACY_AT_LEAST:
        found.append(f"accuracy {facts.accuracy:.3f} is below {ACCURACY_AT_LEAST}")
    if not abs(facts.accuracy - facts.accuracy_gloo) <= ACCURACY_APART_AT_MOST:
        found.append(
            f"accuracy {facts.accuracy:.3f} is more than {ACCURACY_APART_AT_MOST} from Gloo's {facts.accuracy_gloo:.3f}"
        )
    return found
