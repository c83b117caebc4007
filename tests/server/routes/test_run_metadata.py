"""What people say of runs: titles, tags, notes, archived; the list sorted and searched by them; kept in backups."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import forked
from tests.server.process import Run, Server
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


def test_what_is_given_is_set_and_the_rest_stays(run: Run) -> None:
    run.post(opening(KNOWN), batch(KNOWN, 0, range(4)))

    def patch(**changes: Any) -> Any:
        return run.ask(method="PATCH", json=changes).json()

    reported = patch(title="The <b>first</b>", tags=["bf16", "sweep", "bf16"])
    assert reported == {
        "id": run.id, "title": "The <b>first</b>", "tags": ["bf16", "sweep"], "note": "", "archived": False,
    }  # fmt: skip
    assert patch(note="diverged at\nstep 12", archived=True) == reported | {
        "note": "diverged at\nstep 12", "archived": True,
    }  # fmt: skip
    found = run.get()
    assert (found["name"], found["title"], found["note"], found["archived"]) == (
        run.name, "The <b>first</b>", "diverged at\nstep 12", True,
    )  # fmt: skip
    line = next(each for each in run.server.get("/api/v1/runs")["runs"] if each["id"] == run.id)
    assert (line["title"], line["tags"], line["archived"]) == ("The <b>first</b>", ["bf16", "sweep"], True)
    assert patch(archived=False, title="")["title"] == ""
    run.post(batch(KNOWN, 1, range(4, 8)))  # its ranks go on under their name
    assert run.get()["last_step"] == 7


REFUSED = [
    (b"{", "cannot be read"), (b'{"title": 3}', "title"), (b'{"colour": "red"}', "colour"),
    (b'{"tags": [""]}', "tags"), (b'{"tags": "a"}', "tags"), (b'{"archived": 1}', "archived"),
    (b'{"title": "a\\u0000b"}', "title"), (b'{"note": "' + b"x" * 10_001 + b'"}', "note"),
    (b'{"tags": [' + b",".join(b'"%d"' % each for each in range(21)) + b"]}", "tags"),
]  # fmt: skip


def test_bad_input_has_a_clear_answer(run: Run) -> None:
    run.post(opening(KNOWN))
    for body, said in REFUSED:
        answer = run.ask(method="PATCH", content=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "bad_parameter"), said
        assert said in answer.json()["error"]
    assert run.get()["title"] == ""
    assert run.ask(method="PATCH", content=b" " * 70_000).status_code == 413


def test_no_such_run(run: Run) -> None:
    run.post(opening(KNOWN))
    for number in (str(run.id + 1_000_000), "-1", str(2**63)):
        path = f"/api/v1/runs/{number}"
        assert run.server.client.patch(path, json={"title": "x"}).status_code == 404, number
    run.ask(method="DELETE").raise_for_status()
    assert run.ask(method="PATCH", json={"title": "x"}).status_code == 404


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


@pytest.mark.slow
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
