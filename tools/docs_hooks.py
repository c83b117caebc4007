"""MkDocs' hooks for the site of docs/: files of the repository that pages link to become part of the site, and what the
tests read in the first line of a code block is taken out of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
# Pages of their own, whose links are written as seen from the root.
PAGES = ("ARCHITECTURE.md", "CHANGELOG.md")
OUTSIDE = re.compile(r"\]\((?:\.\./)+([^)#\s]+)(#[^)\s]*)?\)")
FROM_ROOT = re.compile(r"\]\(docs/")
BEGINS = re.compile(r"[-*] |\d+\. |\|")
STAYS = re.compile(r"[-*] |\d+\. |\||\s|#")  # what is in a list or table already, or a heading
FENCE = re.compile(r"^(```\w+[^\n]*?)[^\S\n]+(?:no-run|needs)=\"[^\"\n]*\"", re.MULTILINE)


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages of the root, and every file outside docs/ that a page links to."""
    for name in (*PAGES, *sorted(_linked(files))):
        if files.get_file_from_path(name) is None:
            files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """The page as the site has it."""
    if page.file.src_uri in PAGES:
        markdown = FROM_ROOT.sub("](", markdown)
    markdown = "\n".join(_spaced(markdown.split("\n")))
    up = "../" * page.file.src_uri.count("/")
    return FENCE.sub(r"\1", OUTSIDE.sub(lambda found: _inside(found, up, files), markdown))


def _spaced(lines: list[str]) -> Iterator[str]:
    """A list or table right under a paragraph is one on GitHub; Python-Markdown wants an empty line between them."""
    is_code, before = False, ""
    for line in lines:
        begins = BEGINS.match(line)
        if begins and not is_code and before.strip() and not STAYS.match(before):
            yield ""
        is_code ^= line.startswith("```")
        yield line
        before = line


def _linked(files: Files) -> set[str]:
    pages = [(ROOT / "docs" / file.src_uri).read_text() for file in files.documentation_pages()]
    named = {found[1] for text in pages for found in OUTSIDE.finditer(text)}
    return {name for name in named if (ROOT / name).is_file() and not (ROOT / "docs" / name).exists()}


def _inside(found: re.Match[str], up: str, files: Files) -> str:
    """A link out of docs/, to the copy in the site. Others (from a folder of docs/ to its parent) stay."""
    name, anchor = found[1], found[2] or ""
    if not (ROOT / name).is_file() or (ROOT / "docs" / name).exists():
        return found[0]
    return f"]({up}{name}{anchor})"
