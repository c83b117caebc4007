"""Running it: probes, metrics, logs. Real processes and databases."""

from __future__ import annotations

import io
import json
import logging
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError
from starlette.datastructures import Headers

from rangewatch import wire
from rangewatch.client.connection import ServerError
from rangewatch.client.server_api import find_run
from rangewatch_server.access.middleware import may_read
from rangewatch_server.access.principals import COOKIE, Principals
from rangewatch_server.core import logs
from rangewatch_server.core.settings import Settings
from rangewatch_server.http import serve
from rangewatch_server.http.health import Readings, checks
from rangewatch_server.store.condition import _type_at, newest_schema, read
from rangewatch_server.store.tokens import AccessStore, Session, digest_of
from tests.server.opened_store import Store
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)


def metrics(server: Server, **headers: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Sample name -> label values, by label name -> value."""
    answer = server.client.get("/metrics", headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels[name] for name in sorted(sample.labels))] = (
                sample.value
            )
    return found


def until(condition: Callable[[], Any]) -> Any:
    """Wait for it."""
    for _ in range(3_000):
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError("it never became true")


def states(answer: httpx.Response) -> dict[str, str]:
    return {check["name"]: check["state"] for check in answer.json()["checks"]}


# Probes


def test_a_working_server_is_ready(database_url: str, start_server: Callable[..., Server]) -> None:
    server = start_server(db=database_url)
    ready = server.client.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "ready")
    found = {check["name"]: check for check in ready.json()["checks"]}
    assert (found["write"]["value"], found["schema"]["value"]) == ("works", newest_schema())
    assert found["queue"]["value"].endswith(" of 1024 messages")
    if database_url.startswith("sqlite"):
        assert found["sqlite"]["value"] == sqlite3.sqlite_version
        assert found["disk_free_bytes"]["value"] > 0
        assert "wal_bytes" in found


@pytest.mark.slow
def test_a_file_locked_by_another_program_is_not_ready(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    """The writer hangs for SQLite's 5 s of patience; /readyz says so long before, and /healthz is untouched."""
    server = start_server(db=str(tmp_path / "a.db"))
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    answer = server.client.get("/readyz", timeout=4)
    assert (answer.status_code, states(answer)["write"]) == (503, "failed")
    assert server.client.get("/healthz", timeout=4).status_code == 200
    other.execute("ROLLBACK")
    other.close()
    until(lambda: server.client.get("/readyz").status_code == 200)


@pytest.mark.slow
def test_too_little_room_is_not_ready(start_server: Callable[..., Server]) -> None:
    server = start_server("--min-free-mib", str(1 << 40))
    answer = server.client.get("/readyz")
    assert (answer.status_code, states(answer)["disk_free_bytes"]) == (503, "failed")


def test_a_disk_that_is_nearly_full_still_lets_runs_be_deleted(
    tmp_path: Path, start_server: Callable[..., Server]
) -> None:
    path = tmp_path / "a.db"
    store = Store(f"sqlite:///{path}")
    store.send_all([opening(KNOWN), batch(KNOWN, 0, range(8))])
    store.close()
    server = start_server("--min-free-mib", str(1 << 40), db=str(path))
    answer = server.post(batch(KNOWN, 1, range(8, 16)))
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert answer.headers["retry-after"] and "nearly full" in answer.json()["error"]
    assert server.get("/api/v1/runs/1")["last_step"] == 7, "what is there can be read"
    assert server.client.delete("/api/v1/runs/1").status_code == 200
    assert server.log.text().count("messages are refused") == 1


@pytest.mark.slow
def test_another_versions_schema_is_not_ready(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    server = start_server(db=str(tmp_path / "a.db"))
    with sqlite3.connect(tmp_path / "a.db") as other:
        other.execute("UPDATE alembic_version SET version_num = '9999'")
    other.close()
    answer = server.client.get("/readyz")
    assert (answer.status_code, states(answer)["schema"]) == (503, "failed")


def test_probes_need_no_token_and_tell_no_details(start_server: Callable[..., Server]) -> None:
    server = start_server("--token", "s3cret", "--allow-host", "rangewatch.example")
    known = {"Authorization": "Bearer s3cret", "Host": "rangewatch.example"}
    by_address = {"Host": "10.0.0.7:8642"}
    assert server.client.get("/healthz", headers=by_address).status_code == 200
    bare = server.client.get("/readyz", headers=by_address)
    assert (bare.status_code, bare.json()) == (200, {"status": "ready"})
    assert server.client.get("/readyz", headers=known).json()["checks"]
    assert server.client.get("/metrics").status_code == 401
    assert server.client.get("/metrics", headers=by_address | known | by_address).status_code == 421
    assert b"rangewatch_build_info" in server.client.get("/metrics", headers=known).content


@pytest.fixture
def callers_of(tmp_path: Path) -> Callable[[Settings], Principals]:
    return lambda settings: Principals(settings, AccessStore(make_url(f"sqlite:///{tmp_path / 'a.db'}")))


def test_who_may_read_the_details(callers_of: Callable[[Settings], Principals]) -> None:
    named = callers_of(Settings(allowed_hosts=("a.example",)))
    assert may_read(Headers({"host": "a.example"}), named)
    assert not may_read(Headers({"host": "rebound.example"}), named)
    assert not may_read(Headers({"host": "127.0.0.1"}), callers_of(Settings(token="x")))


@pytest.mark.parametrize(
    "other", ["a:b=1", "name with space=1", "@x=y", '{"a": 1}', "bare", f"{COOKIE}=other", f"{COOKIE}="]
)
def test_anothers_cookie_does_not_hide_ours(other: str, callers_of: Callable[[Settings], Principals]) -> None:
    with_token = callers_of(Settings(token="s3cret"))
    proof = with_token.proof("cookie")
    with_token.store.open_session(Session(digest_of("cookie"), None, proof, time.time_ns() + 10**12))
    with_token.load()
    ours = f"{COOKIE}=cookie"
    for cookies in (f"{other}; {ours}", f"{ours}; {other}"):
        assert may_read(Headers({"host": "127.0.0.1", "cookie": cookies}), with_token), cookies
    assert not may_read(Headers({"host": "127.0.0.1", "cookie": f"{other}; {COOKIE}=x"}), with_token)


def test_a_network_file_system_is_warned_of(tmp_path: Path) -> None:
    mounts = [
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw",
        r"23 22 0:40 / /net\040share rw,relatime shared:7 - nfs4 host:/share rw",
        "24 23 8:2 / /net\\040share/local rw - xfs /dev/sdb rw",
    ]
    assert _type_at("/net share/a/runs.db", mounts) == "nfs4"
    assert _type_at("/net shared/runs.db", mounts) == "ext4"
    assert _type_at("/net share/local/runs.db", mounts) == "xfs"
    store = Store(f"sqlite:///{tmp_path / 'a.db'}")
    condition = read(store.engines.reader, 15)
    store.close()
    on_nfs = type(condition)(schema=newest_schema(), live_runs=0, database_bytes=1, free_bytes=1 << 40,
                             wal_bytes=0, file_system="nfs4")  # fmt: skip
    listed = {check.name: check for check in checks(on_nfs, True, Readings(False, True, 0), Settings())}
    assert (listed["file_system"].state, listed["schema"].state) == ("warning", "ok")
    assert "PostgreSQL" in listed["file_system"].advice
    ill = type(condition)(schema="9999", live_runs=0, database_bytes=1, free_bytes=1, wal_bytes=0, file_system="ext4")
    failed = [
        check.name for check in checks(ill, True, Readings(False, True, 0), Settings()) if check.state == "failed"
    ]
    assert failed == ["schema", "disk_free_bytes"]
    assert condition.file_system


@pytest.mark.parametrize(
    ("facts", "written", "failing"),
    [
        (Readings(True, True, 0), True, "draining"),
        (Readings(False, False, 0), False, "write"),
        (Readings(False, True, 0), None, "write"),
        (Readings(False, True, 0), OSError("disk I/O error"), "write"),
        (Readings(False, True, 1_024), True, "queue"),
    ],
)
def test_each_failure_is_named_with_what_to_do(facts: Readings, written: Any, failing: str) -> None:
    listed = [check for check in checks(None, written, facts, Settings()) if check.state == "failed"]
    assert [check.name for check in listed] == [failing, "database"]
    assert all(check.advice for check in listed)


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("database is locked", "another program holds a lock"),
        ("canceling statement due to lock timeout", "another program holds a lock"),
        ("database or disk is full", "make room"),
        ("could not extend file: No space left on device", "make room"),
        ("attempt to write a readonly database", "read-only"),
        ("disk I/O error", "see the log, and the disk"),
        ("", "see the log, and the disk"),
    ],
)
def test_the_advice_fits_what_the_database_says(said: str, advice: str) -> None:
    error = OperationalError("INSERT INTO full", {}, sqlite3.OperationalError(said))
    found = checks(None, error, Readings(False, True, 0), Settings())[1]
    assert (found.name, found.value) == ("write", said or "OperationalError")
    assert found.advice.startswith(advice) or advice in found.advice
    assert ("lock" in found.advice) == ("lock" in said)


# Settings


REFUSED = [
    (["--db", "://"], "--db is no URL"),
    (["--db", "postgresql://u:s3cret@h:notaport/x"], "--db is no URL"),
    (["--db", "postgresql://u:s3:cret@[::1/x"], "--db is no URL"),
    (["--db", "sqlite://"], "--db names no file"),
    (["--db", "~nobody-of-that-name/a.db"], "--db: "),
    (["--keep-gb", "1e305"], "--keep-gb 1e+305: must be more than 0, and at most 1e+09"),
    (["--keep-gb", "-1"], "--keep-gb -1: must be more than 0"),
    (["--keep-days", "nan"], "--keep-days nan: must be more than 0"),
    (["--keep-days", "inf"], "--keep-days inf: must be more than 0"),
    (["--alerts-percent", "0"], "--alerts-percent must be above 0 and at most 100"),
    (["--alerts-percent", "nan"], "--alerts-percent must be above 0 and at most 100"),
    (["--alerts-percent", "101"], "--alerts-percent must be above 0 and at most 100"),
    (["--alerts-percent", "some"], "--alerts-percent 'some': must be a number"),
]


def test_a_setting_that_cannot_be_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual = ["--port", "0", "--db", str(tmp_path / "a.db")]
    for arguments, says in REFUSED:
        assert serve.main([*usual, *arguments]) == 2, arguments
        said = capsys.readouterr().err
        assert said.startswith(f"rangewatch serve: {says}"), said
        assert said.count("\n") == 1, said
        assert "cret" not in said
        assert not list(tmp_path.iterdir()), arguments


def test_the_help_names_every_environment_variable() -> None:
    parser = serve.parser()
    options = [action.option_strings[-1] for action in parser._actions]
    named = {option.removeprefix("-").replace("-", "_").upper() for option in options if option != "--help"}
    assert parser.epilog is not None
    assert named == {f"_{each}" for each in re.findall(r"_([A-Z_]+)\b", parser.epilog)}


# Runs by name


@pytest.mark.slow
def test_a_run_is_found_however_many_came_after_it(server: Server) -> None:
    for number in range(1, 106):
        server.post(opening(KNOWN, run={1: "oldest", 104: "2"}.get(number, f"run {number}")))
    assert [find_run(server.url, name)["id"] for name in ("oldest", "1", "run 3", "105")] == [1, 1, 3, 105]
    with pytest.raises(ServerError, match=r"'2' may mean number 104 \('2'\) and number 2 \('run 2'\)"):
        find_run(server.url, "2")
    with pytest.raises(ServerError, match=r"no run 'none' at .*; there are: run 105, 2, run 103"):
        find_run(server.url, "none")


# Metrics


def test_what_is_counted(database_url: str, start_server: Callable[..., Server]) -> None:
    server = start_server(db=database_url)
    body = wire.encode(batch(KNOWN, 0, range(70)))
    assert server.post(batch(KNOWN, 0, range(4), run="never opened")).status_code == 409
    server.post(opening(KNOWN))
    assert server.post(body).status_code == server.post(body).status_code == 202
    server.get("/api/v1/runs/1")
    found = metrics(server)
    assert found["rangewatch_ingest_messages_total"][()] == 3
    assert found["rangewatch_ingest_duplicates_total"][()] == 1
    assert found["rangewatch_ingest_received_bytes_total"][()] > 2 * len(body)
    assert found["rangewatch_ingest_refusals_total"] == {("unknown_run",): 1}
    assert found["rangewatch_ingest_acknowledgement_seconds_count"][()] == 3
    assert found["rangewatch_commits_total"][()] == 4, "a group that refuses its only message is committed too"
    assert found["rangewatch_commit_messages_sum"][()] == 4
    assert found["rangewatch_http_requests_total"]["POST", "/api/v1/ingest", "202"] == 3
    assert found["rangewatch_http_requests_total"]["GET", "/api/v1/runs/{run_id}", "200"] == 1
    assert found["rangewatch_live_runs"][()] == 1
    assert found["rangewatch_unfolded_batches"][()] == 1
    assert found["rangewatch_database_bytes"][()] > 0


def test_a_client_cannot_make_series(server: Server) -> None:
    for each in range(20):
        server.client.get(f"/page/{each}")
        server.client.request(f"VERB{each}", "/api/v1/runs")
        server.client.get(f"/api/v1/runs/{each}", headers={"Host": f"h{each}.example"})
        server.post(batch(KNOWN, 0, range(4), run=f"run {each}"))
    requests = metrics(server)["rangewatch_http_requests_total"]
    assert len(requests) < 8, requests
    assert requests["GET", "/{path:path}", "200"] == 20
    assert requests["GET", "none", "421"] == 20


@pytest.mark.slow
def test_live_streams_are_counted(server: Server) -> None:
    with server.client.stream("GET", "/api/v1/live") as live:
        lines = live.iter_lines()  # kept: without its reader the stream would be closed
        next(lines)
        assert metrics(server)["rangewatch_live_streams"][()] == 1
    until(lambda: metrics(server)["rangewatch_live_streams"][()] == 0)


# Logs

HOSTILE = 'a\nERROR forged: "x"\r\x1b[31m\u2028\udc80 name'


@pytest.fixture
def log() -> Iterator[Callable[[str, str], tuple[logging.Logger, io.StringIO]]]:
    root, before = logging.getLogger(), list(logging.getLogger().handlers)
    levels = {name: logging.getLogger(name).level for name in ("", *logs.OURS)}

    def make(form: str, level: str) -> tuple[logging.Logger, io.StringIO]:
        stream = io.StringIO()
        logs.configure(form, level, stream)
        return logging.getLogger("rangewatch.server"), stream

    yield make
    root.handlers[:] = before
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.parametrize("form", logs.FORMATS)
def test_no_name_breaks_a_line(form: str, log: Any) -> None:
    logger, stream = log(form, "info")
    logger.info("run %s", HOSTILE, extra={"run": HOSTILE, "rank": 3})
    said = stream.getvalue()
    assert len(said.splitlines()) == 1
    assert "\x1b" not in said
    if form == "json":
        line = json.loads(said)
        assert (line["level"], line["logger"], line["rank"]) == ("info", "rangewatch.server", 3)
        assert line["run"] == HOSTILE
        assert line["time"].endswith("Z")


@pytest.mark.parametrize("form", logs.FORMATS)
def test_an_exceptions_text_forges_no_line(form: str, log: Any) -> None:
    logger, stream = log(form, "error")
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logger.exception("failed")
    lines = stream.getvalue().splitlines()
    assert all(line.startswith("    ") for line in lines[1:])
    assert len(lines) == 1 or form == "text"


def test_levels(log: Any) -> None:
    logger, stream = log("text", "info")
    logger.debug("ours below")
    logger.info("ours")
    logging.getLogger("uvicorn.error").info("uvicorn")
    logging.getLogger("alembic").info("others below")
    assert [line.split(": ")[1] for line in stream.getvalue().splitlines()] == ["ours", "uvicorn"]


def test_the_servers_own_lines_are_json(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    server = start_server("--log-format", "json", "--log-level", "debug")
    server.client.get("/api/v1/runs/7%0Aforged")
    server.stop()
    lines = [json.loads(line) for line in server.log.whole().splitlines()]
    asked = [line for line in lines if line["logger"] == "rangewatch.requests"]
    assert {"path": "/api/v1/runs/7\nforged", "status": 422, "method": "GET"}.items() <= asked[-1].items()
    assert "uvicorn.error" in {line["logger"] for line in lines}
