"""What people say of runs: titles, tags, notes, archived; the list sorted and searched by them; kept in backups."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import forked
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening
from tests.server.tokens import bearer, create

KNOWN = catalogue(3)


def patch(server: Server, run: int, **changes: Any) -> httpx.Response:
    return httpx.patch(f"{server.url}/api/v1/runs/{run}", json=changes)


def names(server: Server, query: str = "") -> list[str]:
    return [run["name"] for run in server.get(f"/api/v1/runs?{query}")["runs"]]


def begin(server: Server, *runs: str) -> None:
    for run in runs:
        server.post(opening(KNOWN, run=run))
        server.post(batch(KNOWN, 0, range(4), run=run))


def test_what_is_given_is_set_and_the_rest_stays(server: Server) -> None:
    begin(server, "a")
    told = patch(server, 1, title="The <b>first</b>", tags=["bf16", "sweep", "bf16"]).json()
    assert told == {"id": 1, "title": "The <b>first</b>", "tags": ["bf16", "sweep"], "note": "", "archived": False}
    assert patch(server, 1, note="diverged at\nstep 12", archived=True).json() == told | {
        "note": "diverged at\nstep 12", "archived": True,
    }  # fmt: skip
    run = server.get("/api/v1/runs/1")
    assert (run["name"], run["title"], run["note"], run["archived"]) == (
        "a", "The <b>first</b>", "diverged at\nstep 12", True,
    )  # fmt: skip
    line = server.get("/api/v1/runs")["runs"][0]
    assert (line["title"], line["tags"], line["archived"]) == ("The <b>first</b>", ["bf16", "sweep"], True)
    assert patch(server, 1, archived=False, title="").json()["title"] == ""
    server.post(batch(KNOWN, 1, range(4, 8), run="a"))  # its ranks go on under their name
    assert server.get("/api/v1/runs/1")["last_step"] == 7


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "cannot be read"), (b'{"title": 3}', "title"), (b'{"colour": "red"}', "colour"),
        (b'{"tags": [""]}', "tags"), (b'{"tags": "a"}', "tags"), (b'{"archived": 1}', "archived"),
        (b'{"title": "a\\u0000b"}', "title"), (b'{"note": "' + b"x" * 10_001 + b'"}', "note"),
        (b'{"tags": [' + b",".join(b'"%d"' % each for each in range(21)) + b"]}", "tags"),
    ],
)  # fmt: skip
def test_bad_input_has_a_clear_answer(server: Server, body: bytes, said: str) -> None:
    begin(server, "a")
    answer = httpx.patch(f"{server.url}/api/v1/runs/1", content=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_parameter")
    assert said in answer.json()["error"]
    assert server.get("/api/v1/runs/1")["title"] == ""


def test_no_such_run(server: Server) -> None:
    begin(server, "a")
    for number in ("7", "-1", str(2**63)):
        assert patch(server, number, title="x").status_code == 404  # type: ignore[arg-type]
    assert httpx.patch(f"{server.url}/api/v1/runs/1", content=b" " * 70_000).status_code == 413
    httpx.delete(f"{server.url}/api/v1/runs/1").raise_for_status()
    assert patch(server, 1, title="x").status_code == 404


def test_the_list_is_searched_and_sorted(server: Server) -> None:
    begin(server, "zeta", "Alpha", "müller", "beta")
    patch(server, 1, tags=["Öl"])
    patch(server, 4, title="a title")
    patch(server, 2, archived=True)
    assert names(server) == ["beta", "müller", "Alpha", "zeta"]
    assert names(server, "sort=oldest") == ["zeta", "Alpha", "müller", "beta"]
    assert names(server, "sort=name") == ["beta", "Alpha", "müller", "zeta"]
    server.post(batch(KNOWN, 1, range(4, 8), run="Alpha"))
    assert names(server, "sort=seen")[0] == "Alpha"
    assert (names(server, "q=ÖL"), names(server, "q=MÜL"), names(server, "q=TITLE")) == (["zeta"], ["müller"], ["beta"])
    assert names(server, "q=%25") == []
    assert (names(server, "archived=true"), len(names(server, "archived=false"))) == (["Alpha"], 3)
    assert server.get("/api/v1/runs?limit=2&sort=name&offset=2")["total"] == 4
    assert names(server, "limit=2&sort=name&offset=2") == ["müller", "zeta"]
    page = server.get("/api/v1/runs?limit=2&q=a")
    assert ([each["name"] for each in page["runs"]], page["next"], page["total"]) == (["beta", "Alpha"], 2, 3)
    assert names(server, "limit=2&q=a&before=2") == ["zeta"]
    assert httpx.get(f"{server.url}/api/v1/runs?sort=size").status_code == 422


def test_only_an_admin_may(start_server: Callable[..., Server], tmp_path: Path) -> None:
    db = f"{tmp_path}/t.db"
    view, admin = create(db, "ana", "view"), create(db, "bob", "admin", "ingest")
    server = start_server(db=db)
    server.post(opening(KNOWN), **bearer(admin))
    where = f"{server.url}/api/v1/runs/1"
    assert httpx.patch(where, json={"title": "x"}).status_code == 401
    assert httpx.patch(where, json={"title": "x"}, headers=bearer(view)).status_code == 403
    assert (
        httpx.patch(where, json={"title": "x"}, headers=bearer(admin) | {"origin": "http://evil.example"}).status_code
        == 403
    )
    assert httpx.patch(where, json={"title": "x"}, headers=bearer(admin)).json()["title"] == "x"


def test_it_is_in_a_backup(server: Server, start_server: Callable[..., Server], tmp_path: Path) -> None:
    begin(server, "a", "b")
    patch(server, 1, title="t", tags=["x"], note="n", archived=True)
    copy, other = tmp_path / "copy.db", start_server(db=str(tmp_path / "other.db"))
    forked.server.run("-m", "rangewatch", "backup", copy, "--url", server.url).check_returncode()
    spoiled = tmp_path / "spoiled.db"
    spoiled.write_bytes(copy.read_bytes())
    with sqlite3.connect(spoiled) as connection:
        connection.execute("UPDATE runs SET tags = '{' WHERE name = 'a'")
    refused = forked.server.run("-m", "rangewatch", "restore", spoiled, "--url", other.url)
    assert refused.returncode != 0 and "what is said of the run 'a' cannot be read" in refused.stdout + refused.stderr
    forked.server.run("-m", "rangewatch", "restore", copy, "--url", other.url).check_returncode()
    found = {run["name"]: run for run in other.get("/api/v1/runs")["runs"]}
    assert (found["a"]["title"], found["a"]["tags"], found["a"]["archived"]) == ("t", ["x"], True)
    assert (found["b"]["title"], found["b"]["tags"], found["b"]["archived"]) == ("", [], False)
