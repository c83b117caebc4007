"""The site is built with no warning, has every page in its navigation, and asks no other host for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

pytestmark = pytest.mark.timeout(300)
LOADED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src")}


class Assets(HTMLParser):
    """What a browser loads for a page, and the text outside code."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.paragraphs: list[str] = []
        self._inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [value or "" for name, value in attrs if (tag, name) in LOADED]
        if tag in ("p", "code", "pre"):
            self._inside.append(tag)
        if tag == "p":
            self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._inside:
            self._inside.remove(tag)

    def handle_data(self, data: str) -> None:
        if self._inside == ["p"]:
            self.paragraphs[-1] += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` does it."""
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Assets]:
    found = {}
    for path in site.rglob("*.html"):
        found[str(path.relative_to(site))] = assets = Assets()
        assets.feed(path.read_text())
    return found


@pytest.mark.slow
def test_every_page_of_docs_is_built(pages: dict[str, Assets]) -> None:
    """That it is in the navigation, too, is a warning of mkdocs where it is not, and so the build's failure."""
    written = {str(path.relative_to(ROOT / "docs").with_suffix(".html")) for path in (ROOT / "docs").rglob("*.md")}
    assert written <= set(pages)
    assert {"ARCHITECTURE.html", "CHANGELOG.html"} <= set(pages)


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[str, Assets]) -> None:
    away = {each for assets in pages.values() for each in assets.loaded if re.match(r"(https?:)?//", each)}
    assert away == set()
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", styles)


@pytest.mark.slow
def test_what_is_loaded_is_there(site: Path, pages: dict[str, Assets]) -> None:
    for page, assets in pages.items():
        for each in assets.loaded:
            if not each.startswith(("data:", "/", "#")):
                assert (site / page).parent.joinpath(each.split("?")[0]).exists(), f"{page}: {each}"


@pytest.mark.slow
def test_tables_and_lists_are_drawn(pages: dict[str, Assets]) -> None:
    """Text that is still as it was written: what GitHub takes for a table and Python-Markdown does not."""
    left = {(page, text) for page, assets in pages.items() for text in assets.paragraphs if re.match(r"\||- \w", text)}
    fences = {(page, text) for page, assets in pages.items() for text in assets.paragraphs if "```" in text}
    assert left | fences == set()


@pytest.mark.slow
def test_it_can_be_searched(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()
    assert "loss_scale_collapse" in index and "checksum_max" in index


def test_images_are_small() -> None:
    for path in (ROOT / "docs" / "images").glob("*.png"):
        assert path.stat().st_size < 200_000, path.name


def test_every_page_is_in_the_navigation() -> None:
    """What mkdocs would warn of, without building the site."""
    pages = set(re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert pages == written | {"ARCHITECTURE.md", "CHANGELOG.md"}


def test_links_lead_to_files_and_headings() -> None:
    followed = 0
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)):
            target, _, anchor = link.partition("#")
            found = path.parent / target if target else path
            if not re.match(r"\w+:", link) and found.name not in ("ARCHITECTURE.md", "CHANGELOG.md"):
                assert found.exists(), f"{path.name}: {link}"
                assert not anchor or anchor in headings(found), f"{path.name}: {link}"
                followed += 1
    assert followed > 50


def headings(path: Path) -> set[str]:
    """As GitHub makes anchors of them."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    lines = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).strip().replace(" ", "-") for line in lines}
