"""Finds what a source file includes or imports and compares it with the table. Pure: text in, sentences out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .table import C_ROOMS, DPDK_HEADER_PREFIXES, DPDK_ROOM, DPDK_ROOMS, FOREIGN, PYTHON_ROOMS

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


def c_violations(room: str, name: str, text: str, home: dict[str, str]) -> Iterator[str]:
    """Sentences about one C file of `room`. `home` says in which room each of our headers lives."""
    for bracket, header in _INCLUDE.findall(text):
        if header.startswith(DPDK_HEADER_PREFIXES):
            if room not in DPDK_ROOMS:
                yield f"{room}/{name} includes {header}: DPDK headers are for {DPDK_ROOM}/, benches and tests alone"
        elif bracket == '"' and header not in home:
            yield f'{room}/{name} includes "{header}", which is in no room'
        elif header in home and home[header] not in C_ROOMS[room] | {room}:
            yield f"{room}/{name} includes {header} of {home[header]}/: {room} may know {sorted(C_ROOMS[room])}"


def python_violations(module: str, text: str, is_package: bool = False) -> Iterator[str]:
    """Sentences about one Python module."""
    distribution, _, rest = module.partition(".")
    room = rest.partition(".")[0]
    rooms = PYTHON_ROOMS.get(distribution, {})
    if rooms and room not in rooms and room not in ("", "__main__"):
        yield f"{module} is in no room of {distribution}: give it a row in tests/rooms/table.py"
        return
    for imported in sorted(_imports(module, text, is_package)):
        if room in rooms and imported.startswith(distribution + "."):
            other = imported.split(".")[1]
            if other not in rooms[room] | {room, "__version__"}:
                yield f"{module} imports {imported}: {room} may know {sorted(rooms[room])}"
        for foreign, users, where in FOREIGN:
            user = any(_within(module, allowed) for allowed in users)
            if distribution in where and _within(imported, foreign) and not user:
                yield f"{module} imports {imported}: {foreign} is for {sorted(users) or 'nobody'} in {distribution}"


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def _imports(module: str, text: str, is_package: bool) -> set[str]:
    """Absolute dotted names of all that a module imports, anywhere in it, also under `if TYPE_CHECKING`.

    `from a import b` counts as a.b: whether b is a module or a name in one, it is inside a.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.update(f"{_base(module, node, is_package)}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            found.update(
                arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
            )
    return found


def _base(module: str, node: ast.ImportFrom, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    here = module.split(".")
    kept = here[: len(here) - node.level + is_package]
    return ".".join([*kept, node.module] if node.module else kept)


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))
