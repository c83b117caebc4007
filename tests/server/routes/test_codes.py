"""Every code that the server can answer is in the tables of docs/wire.md and docs/api.md, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from rangewatch_server.core.errors import STATUS_OF_CODE

ROOT = Path(__file__).parents[3]
SOURCES = (ROOT / "server/rangewatch_server", ROOT / "agent/rangewatch/wire")
RAISED = ("WireError", "Refused", "CommandRefused")  # their first argument is the code
CODE = re.compile(r"[a-z]+(_[a-z]+)*")
Found = set[tuple[int | None, str]]


def answered() -> Found:
    """(status, code) as the sources have them; status None where it is not written beside the code."""
    found: Found = set()
    for folder in SOURCES:
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                found |= set(_of(node))
    return found


def _of(node: ast.AST) -> Iterator[tuple[int | None, str]]:
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in RAISED and node.args:
            yield from ((STATUS_OF_CODE.get(code), code) for code in _codes(node.args[0]))
        elif len(node.args) > 1 and ((status := _status(node.args[0])) is not None or name == "_answer"):
            yield from ((status, code) for code in _codes(node.args[1]))
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "code":
                yield from ((None, code) for code in _codes(value))
    elif isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "code" for target in node.targets):
        yield from ((None, code) for code in _codes(node.value))


def _status(node: ast.expr) -> int | None:
    is_one = isinstance(node, ast.Constant) and type(node.value) is int and 400 <= node.value < 600
    return node.value if is_one else None  # type: ignore[attr-defined,no-any-return]


def _codes(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.IfExp):
        yield from _codes(node.body)
        yield from _codes(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value):
        yield node.value


def documented(name: str) -> set[tuple[int, str]]:
    """(status, code) of a page's tables: rows `| 400, 422 | `code`, `code` | ...`."""
    found = set()
    for row in re.findall(
        r"^\| (\d{3}(?:, \d{3})*) \| ((?:`[a-z_]+`(?:, )?)+) \|", (ROOT / "docs" / name).read_text(), re.M
    ):
        found |= {(int(status), code) for status in row[0].split(",") for code in re.findall(r"`([a-z_]+)`", row[1])}
    return found


def test_agents_are_told_of_every_code_of_a_message() -> None:
    page = documented("wire.md")
    assert {(status, code) for code, status in STATUS_OF_CODE.items()} <= page
    assert all((STATUS_OF_CODE[code], code) in page for _, code in page if code in STATUS_OF_CODE), "with its status"


def test_every_code_is_in_a_table() -> None:
    pages = documented("wire.md") | documented("api.md")
    sources = answered()
    assert len(sources) > 40, "the sources are read"
    written = {(status, code) for status, code in sources if status is not None}
    assert written - pages == set(), "these are not documented"
    codes = {code for _, code in pages}
    assert {code for _, code in sources} - codes == set(), "nor are these"
    assert codes - {code for _, code in sources} == set(), "and these are answered no more"
