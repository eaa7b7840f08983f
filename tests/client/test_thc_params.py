"""Parameters, tables and random numbers of thc: known answers, choices and refusals."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from pascaline.codec.thc import NAMES, Params, philox, setting, settings, table
from pascaline.errors import ConfigurationError

VECTORS = Path(__file__).parents[1] / "vectors"
ANSWERS = [line.split() for line in (VECTORS / "philox4x32.txt").read_text().splitlines() if line[0] != "#"]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: "-".join(answer[:2]))
def test_philox_known_answers(answer):
    words = [int(word, 16) for word in answer[1:]]
    got = philox.philox4x32(tuple(words[:4]), tuple(words[4:6]), rounds=int(answer[0]))
    assert [f"{int(word):08x}" for word in got] == answer[7:]


def test_random_numbers_are_where_the_document_says():
    seed, sequence, chunk = 0x0123456789ABCDEF, 7, 3
    signs = philox.signs(seed, sequence, chunk, 1024, 320)
    private = philox.halves(seed, sequence, chunk, philox.PRIVATE + 5, 1024, 320)
    for at in (0, 1, 31, 32, 63, 64, 127, 128, 200, 319):
        c = 1024 + at
        state = philox.philox4x32((c // 128, chunk, sequence, 0), (0x89ABCDEF, 0x01234567), 7)
        assert signs[at] == bool(state[c // 32 % 4] >> np.uint32(c % 32) & 1)
        r = c % 128
        state = philox.philox4x32((16 * (c // 128) + r % 16, chunk, sequence, 7), (0x89ABCDEF, 0x01234567), 7)
        word = int(state[r // 16 % 4])
        assert private[at] == (word & 0xFFFF if r < 64 else word >> 16)


# ---- Tables ----


@pytest.mark.parametrize(
    ("bits", "g", "p", "symmetric", "expected", "cost"),
    [
        (4, 30, 1 / 32, True, "0 3 5 7 9 11 13 14 16 17 19 21 23 25 27 30", 0.013075),
        (4, 30, 1 / 32, False, "0 3 5 7 9 11 13 14 15 17 19 21 23 25 27 30", 0.013063),
        (4, 30, 1 / 128, True, "0 4 6 8 10 12 13 14 16 17 18 20 22 24 26 30", 0.01925),
        (3, 34, 1 / 128, True, "0 7 11 15 19 23 27 34", None),
        (2, 34, 1 / 1024, True, "0 13 21 34", None),
        (4, 42, 1 / 1024, True, None, 0.02133),
        (4, 15, 1 / 32, True, "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15", 0.01332),
        (4, 15, 1 / 1024, True, None, 0.03218),
    ],
)
def test_solver_finds_the_known_tables(bits, g, p, symmetric, expected, cost):
    solution = table.solve(bits, g, p, symmetric)
    if expected:
        assert " ".join(map(str, solution.table)) == expected
    if cost:
        assert solution.cost == pytest.approx(cost, abs=6e-6)


def test_a_given_table_has_the_cost_that_the_solver_says():
    solved = table.solve(4, 30, 1 / 32)
    given = table.Solution.of(solved.table, solved.t)
    assert given.cost == pytest.approx(solved.cost, rel=1e-12) and given.p == pytest.approx(1 / 32, rel=1e-12)
    assert table.Solution.of((0, 1, 2, 2), 1.0).cost > 0


def test_solver_equals_exhaustive_search():
    """3 bits on 11 points: all tables, their costs by numerical integration."""
    import itertools

    t = table.half_range(1 / 16)
    x = np.linspace(-t, t, 40001)
    density = np.exp(-x * x / 2) / np.sqrt(2 * np.pi)

    def cost(points):
        levels = (np.array(points) / 5 - 1) * t
        k = np.clip(np.searchsorted(levels, x, side="right") - 1, 0, len(levels) - 2)
        return float(np.trapezoid((x - levels[k]) * (levels[k + 1] - x) * density, x))

    best = min(((0, *inner, 10) for inner in itertools.combinations(range(1, 10), 6)), key=cost)
    solution = table.solve(3, 10, 1 / 16, symmetric=False)
    assert solution.table == best or cost(solution.table) == pytest.approx(cost(best), rel=1e-9)
    assert solution.cost == pytest.approx(cost(best), rel=1e-5)


@pytest.mark.parametrize(("p", "cost"), [(1 / 32, 0.00727), (1 / 128, 0.00139), (1 / 1024, 0.00013)])
def test_clipping_cost(p, cost):
    assert table.clipping_cost(p) == pytest.approx(cost, abs=6e-6)


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.9])
def test_clipping_covariance_is_what_is_drawn(correlation):
    generator = np.random.default_rng(5)
    x, other = generator.standard_normal((2, 4_000_000))
    y = correlation * x + np.sqrt(1 - correlation**2) * other
    taken_x, taken_y = (np.clip(v, -1, 1) - v for v in (x, y))
    products = taken_x * taken_y
    error = products.std() / len(products) ** 0.5
    assert abs(products.mean() - table._clipping_covariance(1.0, correlation)) < 4 * error


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("n", [1, 2, 8, 9, 17, 64, 257])
def test_a_chosen_table_fits_its_sum(bits, n):
    solution = table.choose(bits, n)
    params = setting("thc", n, 1, bits)
    assert params.table == solution.table
    assert params.sum_bits == table.default_sum_bits(bits, n)
    assert params.g * n <= 2**params.sum_bits - 1


@pytest.mark.parametrize(
    ("bits", "n", "correlation", "grids"),
    [(4, 8, 0.0, (15, 31)), (4, 8, 0.5, (15, 31)), (4, 8, 1.0, (15, 31)), (2, 1, 0.5, (3, 8))],
)
def test_the_choice_is_the_least_of_all(bits, n, correlation, grids):
    """Descent finds what trying every g and p finds; from its start, p falls in some of these and rises in others."""
    score = table.predicted_nmse
    everything = min(
        score(table.solve(bits, g, table._tail(step)), n, correlation, "stratified")
        for g in range(grids[0], grids[1] + 1)
        for step in range(3, 30)
    )
    chosen = score(table.choose(bits, n, correlation), n, correlation, "stratified")
    assert chosen <= everything * (1 + 1e-9)


def test_a_wider_or_narrower_sum_can_be_asked_for():
    assert table.choose(4, 17, sum_bits=8).g == 15
    assert table.choose(4, 8, sum_bits=16).g > 31
    with pytest.raises(
        ConfigurationError, match=r"at least 15, but the sum of 18 ranks holds a g of 14 in 8 bits"
    ):
        table.choose(4, 18, sum_bits=8)


# ---- Params ----


@pytest.mark.parametrize("name", NAMES)
def test_settings(name):
    params = setting(name, 4, 99)
    assert params.n == 4 and params.seed == 99
    assert (params.wire_bits == 2) == (name == "terngrad")
    assert (params.rounding == "stratified") == name.startswith(("thc-uniform",)) or name == "thc"


def test_the_paper_is_the_paper():
    paper = setting("thc-paper", 8, 0)
    assert paper.table == table.solve(4, 30, 1 / 32).table == settings.PAPER
    assert paper.t == np.float32(table.half_range(1 / 32))
    assert (paper.rounding, paper.scale_per, paper.op) == ("independent", "tensor", "lut4_u8")
    assert setting("thc-paper", 9, 0).op == "lut4_u16"
    assert setting("thc-release", 8, 0) == dataclasses.replace(paper, rounding="shared")


@pytest.mark.parametrize(
    ("bits", "n", "op"),
    [
        (2, 1, "lut2_u8"),
        (2, 64, "lut2_u16"),
        (3, 4, "lut4_u8"),
        (4, 8, "lut4_u8"),
        (4, 9, "lut4_u16"),
        (8, 1, "lut8_u16"),
    ],
)
def test_op_by_width_and_ranks(bits, n, op):
    assert setting("thc", n, 0, bits).op == op


def test_three_bits_ride_in_four():
    params = setting("thc", 4, 0, bits=3)
    assert len(params.table) == 8 and len(params.wire_table) == 16
    assert params.wire_table[:8] == params.table and set(params.wire_table[8:]) == {params.g}


def test_cells_are_the_last_level_at_or_below():
    assert Params(2, (0, 1, 2, 2), 1, 1, 0).cells == (0, 1)
    assert Params(2, (0, 0, 3, 5), 1, 1, 0).cells == (1, 1, 1, 2, 2)


GOOD = {"bits": 2, "table": (0, 1, 2, 3), "t": 2.0, "n": 4, "seed": 1}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"bits": 5}, r"bits is one of 2, 3, 4, 8, not 5"),
        ({"norm": "l1"}, r"norm is one of l2, max, not 'l1'"),
        ({"rounding": "nearest"}, r"not 'nearest'"),
        ({"scale_per": "chunk"}, r"not 'chunk'"),
        ({"table": (0, 1, 2)}, r"2 bits has 4 entries, this one has 3"),
        ({"table": (0, 2, 1, 3)}, r"must not fall, this one does: \[0, 2, 1, 3\]"),
        ({"table": (1, 2, 3, 4)}, r"goes from 0 to a g of 1 to 255, this one from 1 to 4"),
        ({"table": (0, 2, 3, 256)}, r"this one from 0 to 256"),
        ({"table": (0, 0, 0, 0)}, r"this one from 0 to 0"),
        ({"t": float("nan")}, r"t is a finite number above 0, not nan"),
        ({"debias": 0.0}, r"debias is a finite number above 0, not 0"),
        ({"n": 0}, r"1 to 65535 ranks, not 0"),
        ({"n": 21846}, r"g = 3 times 21846 ranks is 65538, above the 65535 .* g of at most 2"),
        ({"seed": 2**64}, r"0 to 18446744073709551615, not 18446744073709551616"),
    ],
)
def test_refusals_name_both_values(change, sentence):
    Params(**GOOD)
    with pytest.raises(ConfigurationError, match=sentence):
        Params(**{**GOOD, **change})


def test_refused_settings():
    with pytest.raises(ConfigurationError, match="there is no setting 'thc2'"):
        setting("thc2", 4, 0)
    with pytest.raises(ConfigurationError, match="thc-paper has 4 bits, not 2"):
        setting("thc-paper", 4, 0, bits=2)
    with pytest.raises(ConfigurationError, match="one of 2, 3, 4, 8, not 5"):
        setting("thc", 4, 0, bits=5)
    with pytest.raises(ConfigurationError, match="sum of 258 ranks holds a g of 254"):
        setting("thc", 258, 0, bits=8)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_every_length_is_covered(bits):
    params = setting("thc-uniform-max", 1, 0, bits)
    for elems in range(1, 2101):
        coordinates = params.coordinates(elems)
        last = coordinates % 1024 or 1024
        assert elems <= coordinates < elems + max(params.unit, elems % 1024)
        assert last & (last - 1) == 0 and last >= params.unit
        assert params.packed_bytes(elems) % 64 == 0 and params.blocks(elems) == -(-elems // 1024)
