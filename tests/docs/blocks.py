"""The code blocks of docs/ and README.md, with what their first line says of them. `python -m tests.docs.blocks` counts
what is done with them.

A block that cannot run here says why, after its language: `no-run="needs two GPUs"`. One with `title="train.py"` is a
file; it may want a package that is not among those for development: `needs="ray"`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
FENCE = re.compile(r"^```(\w*)(.*)$")
SAID = re.compile(r'([\w-]+)="([^"]*)"')


class Block(NamedTuple):
    """One block; `line` is that of its fence, `section` the heading above it."""

    page: str
    line: int
    section: str
    language: str
    title: str
    no_run: str
    needs: str
    text: str

    @property
    def place(self) -> str:
        """Where it is, as editors take it."""
        return f"{self.page}:{self.line}"

    @property
    def is_file(self) -> bool:
        """Whether it is a file that a command of its page runs."""
        return bool(self.title)


def of(*languages: str) -> list[Block]:
    """Every block in one of these languages."""
    return [block for block in ALL if block.language in languages]


def _blocks(path: Path) -> Iterator[Block]:
    page, section, opened, lines = str(path.relative_to(ROOT)), "", None, list[str]()
    for number, line in enumerate(path.read_text().split("\n"), 1):
        fence = FENCE.match(line)
        if opened is not None and line.strip() == "```":
            yield opened._replace(text="\n".join(lines) + "\n")
            opened, lines = None, []
        elif opened is not None:
            lines.append(line)
        elif fence:
            said = dict(SAID.findall(fence[2]))
            attributes = [said.get(name, "") for name in ("title", "no-run", "needs")]
            opened = Block(page, number, section, fence[1], *attributes, "")
        elif line.startswith("#"):
            section = line.lstrip("# ")
    assert opened is None, f"{page}:{opened and opened.line}: a block without an end"


ALL = [block for path in PAGES for block in _blocks(path)]


def _fate(block: Block) -> str:
    if block.language != "python":
        return f"{block.language or 'no language'}: {'only shown' if block.language in SHOWN else 'checked'}"
    return f"python: {'compiled only' if block.no_run else 'run as a file' if block.is_file else 'run'}"


SHOWN = ("", "text", "caddyfile")
"""Output and layouts, and what no program here can read."""

if __name__ == "__main__":
    for fate, count in sorted(Counter(map(_fate, ALL)).items()):
        print(f"{count:4} {fate}")
