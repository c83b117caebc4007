"""The report on a terminal."""

from __future__ import annotations

from rangewatch.checks.linkcheck import report
from tests.agent.checks.linkcheck.test_post import result


def table(width: int | None) -> list[str]:
    return list(report._tables(result(8) | {"message_bytes": 4 << 20}, width))


def test_a_matrix_is_no_wider_than_the_terminal_and_has_every_pair_twice() -> None:
    lines = table(60)
    assert max(map(len, lines)) <= 60
    cells = [cell for line in lines for cell in line.split()[1:]]
    assert cells.count("15") == cells.count("12.5") == 8 * 7


def test_without_a_terminal_it_is_in_one_piece() -> None:
    assert len(table(None)) == 2 * (1 + 1 + 8)
