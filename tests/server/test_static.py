"""Files of the pages: kept for good by browsers under a name that changes with them."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from rangewatch_server import static
from tests.server.conftest import Server

WEB = Path(__file__).parents[2] / "web"


def test_the_page_names_files_by_what_they_hold(server: Server) -> None:
    page = httpx.get(server.url + "/runs/1/layers")
    assert page.headers["cache-control"] == "no-cache"
    named = re.findall(r'"(/static/[^"]+)"', page.text)
    assert len({each.split("/")[2] for each in named}) == 1
    for path in (named[0], next(each for each in named if each.endswith("/pages/index.js"))):
        answer = httpx.get(server.url + path)
        assert answer.status_code == 200 and "immutable" in answer.headers["cache-control"]


def test_every_module_is_listed(server: Server) -> None:
    listed = re.findall(r'modulepreload" href="/static/[^/"]+/([^"]+)"', httpx.get(server.url).text)
    assert sorted(listed) == sorted(path.relative_to(WEB).as_posix() for path in WEB.rglob("*.js"))


@pytest.mark.parametrize("prefix", ["", "v-0000000000000000/"])
def test_under_another_name_it_is_asked_for_again(server: Server, prefix: str) -> None:
    """A page that was open during an upgrade still gets its files."""
    answer = httpx.get(f"{server.url}/static/{prefix}app.js")
    assert answer.status_code == 200 and answer.headers["cache-control"] == "no-cache"
    again = httpx.get(f"{server.url}/static/{prefix}app.js", headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304


def test_an_edit_changes_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "app.js"
    path.write_text("one")
    monkeypatch.setattr(static, "assets", lambda: {"app.js": path})
    one = static._version_at.__wrapped__(0)
    path.write_text("another")
    assert static._version_at.__wrapped__(0) != one
    path.write_text("one")
    assert static._version_at.__wrapped__(0) == one
