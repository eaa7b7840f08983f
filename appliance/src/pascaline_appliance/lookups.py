"""Tables of the ops that look up: which ones a join may bring. Pure: a Refusal names the values and the way out."""

from __future__ import annotations

from collections.abc import Sequence

from pascaline_appliance.contract.control import Join, table_hash
from pascaline_appliance.dataplane import MAX_TABLE_ENTRY, OPS, SUM_MAX, TABLE_ENTRIES
from pascaline_appliance.errors import Refusal


def check(join: Join, who: str) -> None:
    """A table for every op that looks up and for no other, each sane, and no sum of all ranks that overflows."""
    for op in join.tables:
        if op not in TABLE_ENTRIES:
            raise Refusal(
                "tables",
                f"{who} sends a table for {op}, which looks nothing up: send tables for the ops"
                f" {', '.join(TABLE_ENTRIES)}",
            )
        if op not in join.ops:
            raise Refusal(
                "tables",
                f"{who} sends a table for {op}, its ops are {', '.join(join.ops)}: name the op among them, or send"
                " no table",
            )
    for op in join.ops:
        if op in TABLE_ENTRIES:
            _check_table(op, join.tables.get(op), who)
            _check_sum(op, join.tables[op][-1], join.world_size)


def _check_table(op: str, table: Sequence[int] | None, who: str) -> None:
    if table is None:
        raise Refusal("tables", f"{who} wants {op} and sends no table: send its {TABLE_ENTRIES[op]} entries")
    complaint = _complaint(table, TABLE_ENTRIES[op])
    if complaint:
        raise Refusal("tables", f"the table of {op} of {who} {complaint}")


def _complaint(table: Sequence[int], entries: int) -> str:
    """What is wrong with a table, and what would be right; nothing: ''."""
    if len(table) != entries:
        return f"has {len(table)} entries, the op has {entries} indices: send one for each"
    if table[0] != 0:
        return f"begins with {table[0]}, not with 0: subtract that from all entries"
    for i in range(1, entries):
        if table[i] < table[i - 1]:
            return f"falls from {table[i - 1]} to {table[i]} at index {i}: entries may only rise"
    if not 1 <= table[-1] <= MAX_TABLE_ENTRY:
        return f"ends with {table[-1]}: its last entry, the greatest, is 1 to {MAX_TABLE_ENTRY}"
    return ""


def _check_sum(op: str, greatest: int, world_size: int) -> None:
    """What all ranks can add up to, against what the op's sums hold."""
    if greatest * world_size <= SUM_MAX[op]:
        return
    wider = op.replace("_u8", "_u16")
    way_out = f"use {wider}" if wider != op and wider in OPS else "use a smaller table or fewer ranks"
    raise Refusal(
        "tables",
        f"{op} adds up to {greatest} x {world_size} = {greatest * world_size}, above {SUM_MAX[op]}: {way_out}",
    )


def check_agreement(first: Join, join: Join, who_first: str, who: str) -> None:
    """Tables of two ranks with the same ops, by their content."""
    for op, table in join.tables.items():
        if table != first.tables[op]:
            raise Refusal(
                "tables",
                f"the table of {op} of {who} has the hash {table_hash(table)}, that of {who_first}"
                f" {table_hash(first.tables[op])}: use one codec with the same settings on all ranks",
            )
