"""docs/options.md has every option with its default."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from rangewatch.core.options import OBSERVED_KINDS, Options

TEXT = (Path(__file__).parents[3] / "docs" / "options.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", TEXT, re.MULTILINE))


def test_every_option_with_its_default() -> None:
    for field in dataclasses.fields(Options):
        shown, default = ROWS[field.name], field.default
        if shown.startswith("`") and field.name != "level":
            assert shown == f"`{default}`", field.name
    assert Options().kinds == Options(level="outputs").kinds and Options().queue_bytes == 256 << 20


def test_every_kind() -> None:
    assert set(OBSERVED_KINDS) <= set(ROWS)
