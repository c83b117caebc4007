"""Files of the pages: kept for good by browsers under a name that changes with them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest
from tools import vendor_plotly

from rangewatch_server.core.errors import ApiError
from rangewatch_server.http import static
from tests.server.process import Server


def test_the_page_names_files_by_what_they_hold(served: Server) -> None:
    page = httpx.get(served.url + "/runs/1/layers")
    assert page.headers["cache-control"] == "no-cache"
    named = re.findall(r'"(/static/[^"]+)"', page.text)
    assert len({each.split("/")[2] for each in named}) == 1
    for path in named:
        answer = httpx.get(served.url + path)
        assert answer.status_code == 200 and "immutable" in answer.headers["cache-control"]


def test_the_page_asks_for_no_module_but_the_one(served: Server) -> None:
    scripts = re.findall(r'<script type="module" src="/static/[^/"]+/([^"]+)"', httpx.get(served.url).text)
    assert scripts == ["app.bundle.js"]
    answer = httpx.get(f"{served.url}/static/app.bundle.js")
    assert answer.headers["content-type"].startswith("text/javascript")
    assert "import {" not in answer.text
    sources = json.loads(httpx.get(f"{served.url}/static/app.bundle.js.map").text)["sources"]
    assert all(httpx.get(f"{served.url}/static/{name}").status_code == 200 for name in sources[::40])


@pytest.mark.parametrize(
    ("path", "is_named"), [("runs/7", True), ("runs/7/layers", True), ("runs/7x", False), ("runs", False), ("", False)]
)
def test_a_page_of_a_run_names_the_answer_that_it_waits_for(served: Server, path: str, is_named: bool) -> None:
    link = httpx.get(f"{served.url}/{path}").headers.get("link")
    assert link == ("</api/v1/runs/7>; rel=preload; as=fetch; crossorigin" if is_named else None)


def test_a_library_is_sent_as_it_is_kept(served: Server) -> None:
    address = f"{served.url}/static/vendor/plotly-cartesian.min.js"
    zipped, plain = (httpx.get(address, headers={"accept-encoding": each}) for each in ("gzip", "identity"))
    assert zipped.content == plain.content and zipped.headers["content-encoding"] == "gzip"
    assert vendor_plotly.version_in(plain.text) == vendor_plotly.installed_version(), "make vendor"
    assert httpx.get(f"{address}.gz").status_code == 404


@pytest.mark.parametrize("prefix", ["", "v-0000000000000000/"])
def test_under_another_name_it_is_asked_for_again(served: Server, prefix: str) -> None:
    """A page that was open during an upgrade still gets its files."""
    answer = httpx.get(f"{served.url}/static/{prefix}shell/app.js")
    assert answer.status_code == 200 and answer.headers["cache-control"] == "no-cache"
    again = httpx.get(f"{served.url}/static/{prefix}shell/app.js", headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304


def test_an_edit_changes_the_name_and_all_that_is_made_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static, "web_dir", lambda: tmp_path)
    path = tmp_path / static.ENTRY
    path.parent.mkdir()

    def look() -> static.Site:
        return static._site_at.__wrapped__(0)

    path.write_text("one")
    one = look()
    path.write_text("another")
    another = look()
    assert another.version != one.version
    assert b"one" in one.named("app.bundle.js").body and b"another" in another.named("app.bundle.js").body
    path.write_text("one")
    assert look().version == one.version and b"one" in look().named("app.bundle.js").body


def test_modules_come_and_go_while_the_server_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static, "web_dir", lambda: tmp_path)
    (tmp_path / static.ENTRY).parent.mkdir()
    (tmp_path / static.ENTRY).write_text('import { a } from "../new.js";\n')
    (tmp_path / "new.js").write_text("export const a = 1;\n")
    assert b"const a = 1;" in static._site_at.__wrapped__(0).named("app.bundle.js").body
    listed = static.assets()
    (tmp_path / "new.js").unlink()
    monkeypatch.setattr(static, "assets", lambda: listed)  # it went between the list and the look
    with pytest.raises(ApiError, match="no such file"):
        static._site_at.__wrapped__(0).named("new.js")
