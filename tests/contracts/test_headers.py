"""The C contracts as cffi parses them without a compiler and as the compiler sees them: both must find the same.

Client and exporter read the headers in cffi's ABI mode, the appliance in API mode. Only this test sees both.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import cffi
import pytest

CONTRACT = Path(__file__).parents[2] / "dpdk_c" / "contract"
HEADERS = {"psc_stats.def.h": "psc_stats.h", "psc_wire.def.h": "psc_wire.h"}


def parsed(text: str) -> Any:
    ffi = cffi.FFI()
    ffi.cdef(text)
    return ffi


def compiled(text: str, header: str, folder: Path) -> Any:
    """An API mode module of `text` as the appliance builds it, with the compiler seeing the real header."""
    name = f"_contract_{header.removesuffix('.h')}"
    ffi = cffi.FFI()
    ffi.cdef(text)
    ffi.set_source(name, f'#include "{header}"', include_dirs=[str(CONTRACT)])
    spec = importlib.util.spec_from_file_location(name, ffi.compile(tmpdir=str(folder)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def describe(ffi: Any, lib: Any) -> dict[str, object]:
    """Everything that two sides of a contract must agree on."""
    facts: dict[str, object] = {}
    _, structs, _ = ffi.list_types()
    for name in structs:
        struct = ffi.typeof(f"struct {name}")
        facts[name] = (ffi.sizeof(struct), ffi.alignof(struct))
        for field_name, field in struct.fields:
            facts[f"{name}.{field_name}"] = (field.offset, ffi.sizeof(field.type), field.type.cname)
    for name in dir(lib):
        facts[name] = int(getattr(lib, name))
    return facts


@pytest.mark.parametrize("definition", HEADERS)
def test_parser_and_compiler_agree(definition: str, tmp_path: Path) -> None:
    text = (CONTRACT / definition).read_text()
    abi = parsed(text)
    api = compiled(text, HEADERS[definition], tmp_path)
    facts = describe(abi, abi.dlopen(None))
    assert facts == describe(api.ffi, api.lib)
    assert len(facts) > 20


def test_the_compiler_catches_drift(tmp_path: Path) -> None:
    text = (CONTRACT / "psc_stats.def.h").read_text()
    drifted = text.replace("uint32_t version; ", "uint64_t version; ")
    assert drifted != text
    with pytest.raises(Exception, match="struct psc_stats_header"):
        compiled(drifted, "psc_stats.h", tmp_path).ffi.sizeof("struct psc_stats_header")


@pytest.mark.parametrize("definition", HEADERS)
def test_structs_have_no_hidden_padding(definition: str) -> None:
    ffi = parsed((CONTRACT / definition).read_text())
    for name in ffi.list_types()[1]:
        struct = ffi.typeof(f"struct {name}")
        end = 0
        for field_name, field in struct.fields:
            assert field.offset == end, f"{name}.{field_name} has padding before it"
            end += ffi.sizeof(field.type)
        assert end == ffi.sizeof(struct), f"{name} has padding at its end"


OP_FACTS = {
    "psc_op_unit": "PSC_UNIT_",
    "psc_op_expansion": "PSC_EXPANSION_",
    "psc_op_table": "PSC_TABLE_",
    "psc_op_sum_max": "PSC_SUM_MAX_",
    "psc_op_sub_block": "PSC_SUB_BLOCK_",
}


@pytest.mark.parametrize("definition", HEADERS)
def test_enums_count_themselves(definition: str) -> None:
    """Values are dense from 0 and the last member is their number: arrays by enum and loops over it are right.

    Facts about ops are no such enums: see the next test.
    """
    text = (CONTRACT / definition).read_text()
    ffi = parsed(text)
    names = [name for name in re.findall(r"^enum (\w+) \{", text, re.MULTILINE) if name not in OP_FACTS]
    assert names
    for name in names:
        members = sorted(ffi.typeof(f"enum {name}").elements.items())
        assert [value for value, _ in members] == list(range(len(members))), name
        assert members[-1][1].endswith("_COUNT"), name


def test_every_op_has_its_facts_and_they_fit_each_other() -> None:
    """To look up: a unit of 64 bytes holds 64 * 8 / n indices, and its sums are `expansion` times as long."""
    ffi = parsed((CONTRACT / "psc_wire.def.h").read_text())
    facts = {
        enum: {name.removeprefix(prefix): v for name, v in ffi.typeof(f"enum {enum}").relements.items()}
        for enum, prefix in OP_FACTS.items()
    }
    ops = {name.removeprefix("PSC_OP_") for name in ffi.typeof("enum psc_op").relements} - {"PROBE", "COUNT"}
    look_ups = {op: re.fullmatch(r"LUT(\d)_U(\d+)", op) for op in ops if op.startswith("LUT")}
    assert set(facts["psc_op_unit"]) == set(facts["psc_op_expansion"]) == ops
    assert set(facts["psc_op_table"]) == set(facts["psc_op_sum_max"]) == set(look_ups)
    streams = {op for op in ops if op.startswith("EXPAND_SUM_")}
    assert set(facts["psc_op_sub_block"]) == streams
    assert {2048} == set(facts["psc_op_sub_block"].values())  # what docs/expand-sum.md says
    for op, match in look_ups.items():
        assert match is not None
        index_bits, sum_bits = map(int, match.groups())
        assert facts["psc_op_unit"][op] == 64
        assert facts["psc_op_expansion"][op] * index_bits == sum_bits
        assert facts["psc_op_table"][op] == 1 << index_bits
        assert facts["psc_op_sum_max"][op] == (1 << sum_bits) - 1
    for op in ops - set(look_ups):
        assert facts["psc_op_unit"][op] == 4
        assert facts["psc_op_expansion"][op] == (2 if op in ("SUM_F16", "SUM_BF16") else 1)
