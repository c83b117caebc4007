"""Roles, tokens, sessions and the audit, on real servers and both databases."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import make_url
from starlette.datastructures import Headers

from rangewatch import wire
from rangewatch_server.access import audit_cli, principals, token_cli
from rangewatch_server.access.middleware import needed_role
from rangewatch_server.access.principals import cookie_name
from rangewatch_server.access.rate_limits import LOGIN, Rate, RateLimit
from rangewatch_server.core.errors import ApiError
from rangewatch_server.core.settings import Settings, SettingsError, check_reach
from rangewatch_server.http import app as application
from rangewatch_server.http import serve
from rangewatch_server.http.app import create_app
from rangewatch_server.routes import access
from rangewatch_server.store.tokens import AccessStore
from tests.server.databases import lay_tables
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening
from tests.server.tokens import bearer, cookie_at, create, revoke

KNOWN = catalogue(2)
TRACE = {"kind": "trace", "steps": 3}


def eventually(said: Callable[[], bool]) -> None:
    """Wait for what other processes bring about; pytest's own limit ends a test that waits in vain."""
    while not said():
        time.sleep(0.05)


class Secured(NamedTuple):
    server: Server
    db: str
    tokens: dict[str, str]

    def ask(self, method: str, path: str, who: str, **options: Any) -> httpx.Response:
        headers = bearer(self.tokens[who]) if who else {}
        self.server.client.cookies.clear()
        return self.server.client.request(method, path, headers=headers, **options)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A server with a token of each role, and a run."""
    db = str(tmp_path_factory.mktemp("access") / "a.db")
    tokens = {role: create(db, f"the-{role}", role) for role in ("ingest", "view", "admin")}
    server = Server(db)
    for message in (opening(KNOWN), batch(KNOWN, 0, range(4))):
        assert server.post(message, **bearer(tokens["ingest"])).status_code == 202
    yield Secured(server, db, tokens)
    server.stop()


SENT, LOOKED, CHANGED = ("ingest",), ("view", "admin"), ("admin",)
REQUESTS = [
    ("POST", "/api/v1/ingest", SENT),
    ("GET", "/api/v1/runs", LOOKED),
    ("GET", "/api/v1/runs/1/figures/layers", LOOKED),
    ("GET", "/api/v1/runs/1/figures?figure=layers", LOOKED),
    ("GET", "/api/v1/runs/1/commands", LOOKED),
    ("GET", "/metrics", LOOKED),
    ("POST", "/api/v1/runs/1/commands", CHANGED),
    ("DELETE", "/api/v1/runs/1/commands/99", CHANGED),
    ("DELETE", "/api/v1/runs/999999999", CHANGED),
    ("GET", "/api/v1/prune", CHANGED),
    ("POST", "/api/v1/prune", CHANGED),
    ("GET", "/api/v1/backup", CHANGED),
    ("PUT", "/api/v1/restore", CHANGED),
    ("GET", "/api/v1/audit", CHANGED),
    ("PATCH", "/api/v1/runs", CHANGED),
    ("GET", "/api/v1/ingest", LOOKED),
]


def test_each_role_may_do_its_own_and_no_more(secured: Secured) -> None:
    for method, path, who_may in REQUESTS:
        assert secured.ask(method, path, "").status_code == 401, (method, path)
        for who in ("ingest", "view", "admin"):
            answer = secured.ask(method, path, who)
            assert (answer.status_code == 403) == (who not in who_may), (method, path, who, answer.text)
            if answer.status_code == 403:
                assert answer.json()["code"] == "forbidden"
                assert f"the token 'the-{who}' has the role" in answer.json()["error"]
                assert secured.tokens[who] not in answer.text


def test_every_route_that_changes_something_needs_admin(tmp_path: Path) -> None:
    app = create_app(Settings(db=str(tmp_path / "a.db")))
    routes = [(method.upper(), path) for path, found in app.openapi()["paths"].items() for method in found]
    app.state.writer.engine.dispose()
    assert len(routes) > 25
    for method, path in routes:
        role = needed_role(method, path)
        if path in ("/login", "/logout", "/healthz", "/readyz", "/api/v1/access"):
            assert role is None
        elif method == "GET":
            assert role in ("view", "admin"), path
        else:
            assert role == ("ingest" if path == "/api/v1/ingest" else "admin"), path


def test_a_token_is_stored_as_its_digest_and_shown_once(secured: Secured, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(f"{secured.db}.access")
    assert file.stat().st_mode & 0o777 == 0o600
    assert token_cli.main(["list", "--db", secured.db]) == 0
    assert audit_cli.main(["--db", secured.db]) == 0
    shown = capsys.readouterr().out
    assert "the-ingest" in shown
    for token in secured.tokens.values():
        assert len(token) > 43
        assert token not in shown
        assert token.encode() not in file.read_bytes()


def test_a_token_that_cannot_be(secured: Secured, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["create", "the-view", "--role", "view"], ["create", "a b", "--role", "view"], ["create", "x"],
        ["create", "x", "--role", "root"], ["revoke", "nobody"], ["create", "x" * 65, "--role", "view"], [],
    ):  # fmt: skip
        try:
            status = token_cli.main([*arguments, "--db", secured.db])
        except SystemExit as ended:
            status = int(str(ended.code))
        assert status in (1, 2), arguments
        assert capsys.readouterr().err, arguments


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TestClient]]:
    """Starts the application in this process: a server that looks for new tokens all the time."""
    monkeypatch.setattr(principals, "POLL_S", 0.01)
    monkeypatch.setattr(principals, "REFRESH_S", 0.0)
    with contextlib.ExitStack() as stack:

        def start(**given: Any) -> TestClient:
            settings = Settings(**{"db": str(tmp_path / "a.db")} | given)
            lay_tables(settings.database_url)
            return stack.enter_context(TestClient(create_app(settings), base_url="http://127.0.0.1"))

        yield start


def test_made_and_revoked_beside_a_running_server(app: Callable[..., TestClient], tmp_path: Path) -> None:
    made_and_revoked(str(tmp_path / "a.db"), [app()])


@pytest.mark.slow
def test_made_and_revoked_beside_two_servers(postgres_url: str, start_server: Callable[..., Server]) -> None:
    """Within seconds on every server of the database."""
    made_and_revoked(postgres_url, [start_server(db=postgres_url).client for _ in range(2)])


def made_and_revoked(db: str, servers: list[httpx.Client]) -> None:
    def each_says(status: int, path: str = "/api/v1/runs", **headers: str) -> bool:
        return all(server.get(path, headers=headers).status_code == status for server in servers)

    def each_knows(session: str) -> bool:
        sent = [{"Cookie": f"{cookie_at(str(server.base_url))}={session}"} for server in servers]
        return all(
            server.get("/api/v1/runs", headers=headers).status_code == 200
            for server, headers in zip(servers, sent, strict=True)
        )

    assert each_says(200), "nobody is asked for a token"
    token = create(db, "ana", "view")
    eventually(lambda: each_says(401))
    assert each_says(200, **bearer(token))
    entered = servers[0].post("/login", data={"token": token})
    session = entered.cookies[cookie_at(str(servers[0].base_url))]
    servers[0].cookies.clear()
    assert each_knows(session), "a session is of all servers"
    revoke(db, "ana")
    eventually(lambda: each_says(401, **bearer(token)))
    assert not each_knows(session), "the sessions end with their token"
    said = servers[0].get("/api/v1/runs", headers=bearer(token)).json()["error"]
    assert said.startswith("that token is not known here, or was revoked")
    assert each_says(401), "to revoke the last token lets nobody in"
    store = AccessStore(Settings(db=db).database_url)
    assert store.read().sessions == ()
    store.dispose()


def test_a_name_is_not_used_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = str(tmp_path / "a.db")
    create(db, "ana", "view")
    revoke(db, "ana")
    assert token_cli.main(["create", "ana", "--role", "admin", "--db", db]) == 2
    assert "names are not used again" in capsys.readouterr().err


def test_a_session_and_its_end(secured: Secured) -> None:
    with httpx.Client(base_url=secured.server.url, timeout=30) as browser:
        entered = browser.post("/login", data={"token": secured.tokens["admin"]})
        said = entered.headers["set-cookie"].lower()
        assert "httponly" in said
        assert "samesite=strict" in said
        assert "path=/" in said
        assert "secure" not in said, "over http a browser would not send it back"
        name = cookie_at(secured.server.url)
        cookie = browser.cookies[name]
        assert cookie.encode() not in Path(f"{secured.db}.access").read_bytes()
        assert browser.get("/api/v1/access").json() == {
            "name": "the-admin",
            "roles": ["view", "admin"],
            "session": True,
        }
        for foreign in ({"Origin": "https://evil.example"}, {"Origin": "null"}):
            answer = browser.post("/api/v1/runs/1/commands", json=TRACE, headers=foreign)
            assert (answer.status_code, answer.json()["code"]) == (403, "wrong_origin"), "the cookie does not help"
        with browser.stream("GET", "/api/v1/live") as live:
            lines = live.iter_lines()
            assert next(line for line in lines if line.startswith(":")) == ": connected"
            assert httpx.post(f"{secured.server.url}/logout", cookies={name: cookie}).status_code == 204
            assert not any(line.startswith("data:") for line in lines), "the live page ends with its session"
        assert browser.get("/api/v1/runs").status_code == 401, "the cookie is worth nothing now"


def test_two_servers_of_one_name_keep_apart(secured: Secured, start_server: Callable[..., Server]) -> None:
    """Browsers send a cookie to every port of a host: logging in to one ended the session with the other."""
    servers = {secured.server.url: secured.tokens["view"], start_server("--token", "s3cret").url: "s3cret"}
    with httpx.Client(timeout=30) as browser:

        def statuses() -> list[int]:
            return [browser.get(f"{each}/api/v1/runs").status_code for each in servers]

        for each, token in servers.items():
            assert browser.post(f"{each}/login", data={"token": token}).status_code == 204
        assert statuses() == [200, 200]
        assert browser.post(f"{next(iter(servers))}/logout").status_code == 204
        assert statuses() == [401, 200]


@pytest.mark.parametrize(("host", "name"), [
    ("localhost:8642", "rangewatch_session_8642"), ("[::1]:8643", "rangewatch_session_8643"),
    ("rangewatch.example", "rangewatch_session"), ("a.example:0", "rangewatch_session"), ("", "rangewatch_session"),
    ("a:99999", "rangewatch_session"), ("a:1;x=y", "rangewatch_session"), ("a:1\r\nb", "rangewatch_session"),
])  # fmt: skip
def test_the_cookie_has_the_port_that_the_browser_sees(host: str, name: str) -> None:
    assert cookie_name(Headers({"host": host})) == name


def test_a_token_of_an_agent_opens_no_session(secured: Secured) -> None:
    answer = secured.ask("POST", "/login", "", data={"token": secured.tokens["ingest"]})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "set-cookie" not in answer.headers


def test_a_form_that_is_none() -> None:
    for body in (b"", b"x=1", b"token=a&token=b", b"\xff\xfe", b"token=a&" + b"x=1&" * 50, b"token="):
        with pytest.raises(ApiError) as refused:
            access._token(body)
        assert refused.value.status == 422, body


def test_a_form_without_end_is_cut(secured: Secured) -> None:
    answer = secured.ask("POST", "/login", "", content=b"token=" + b"a" * (1 << 20))
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_logins_are_limited(start_server: Callable[..., Server]) -> None:
    server = start_server("--token", "s3cret")
    guesses = 0
    while server.client.post("/login", data={"token": "guess"}).status_code == 401:
        guesses += 1
    assert guesses >= LOGIN.burst
    for forged in ({}, {"X-Forwarded-For": "203.0.113.9"}):
        limited = server.client.post("/login", data={"token": "s3cret"}, headers=forged)
        assert (limited.status_code, limited.json()["code"]) == (429, "too_often")
        assert 0 < int(limited.headers["retry-after"]) <= 60
    assert server.client.get("/api/v1/runs", headers=bearer("s3cret")).status_code == 200, "others go on"


def test_changes_are_limited_and_reads_are_not(app: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "CHANGES", Rate(2, 0.001))
    client = app()
    assert [client.delete("/api/v1/runs/9").status_code for _ in range(3)] == [404, 404, 429]
    assert client.get("/api/v1/runs").status_code == 200


def test_a_rate_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    limit = RateLimit("tries", Rate(2, 60), Rate(3, 60))

    def taken(client: str) -> bool:
        try:
            limit.take(client)
        except Exception as error:
            assert "wait 1 s" in str(error)
            return False
        return True

    assert [taken("a"), taken("a"), taken("a"), taken("b"), taken("c")] == [True, True, False, True, False]
    now_s += 1.0
    assert [taken("a"), taken("a")] == [True, False]


def test_the_servers_own_token_and_its_sessions(app: Callable[..., TestClient]) -> None:
    """It may do everything; its sessions outlive a restart, and end when it is another one."""
    entered = app(token="s3cret").post("/login", data={"token": "s3cret"})
    cookie = {"Cookie": f"{cookie_at('http://127.0.0.1')}={entered.cookies[cookie_at('http://127.0.0.1')]}"}
    again = app(token="s3cret").get("/api/v1/access", headers=cookie)
    assert again.json()["roles"] == ["ingest", "view", "admin"]
    assert app(token="another").get("/api/v1/runs", headers=cookie).status_code == 401


def test_what_an_admin_does_is_recorded(secured: Secured, capsys: pytest.CaptureFixture[str]) -> None:
    asked = secured.ask("POST", "/api/v1/runs/1/commands", "admin", json=TRACE)
    assert asked.status_code == 201
    assert secured.ask("DELETE", "/api/v1/runs/999999998", "admin").status_code == 404
    refused = secured.ask("POST", "/api/v1/runs/1/commands", "view", json=TRACE)
    assert refused.status_code == 403
    deleted, trace = ended_records(secured)
    assert (deleted["what"], deleted["status"], deleted["who"]) == ("DELETE /api/v1/runs/999999998", 404, "the-admin")
    assert trace["what"] == "POST /api/v1/runs/1/commands"
    assert (trace["status"], trace["who"], trace["client"]) == (201, "the-admin", "127.0.0.1")
    assert '"kind":"trace","steps":3' in trace["detail"]
    assert abs(trace["time_ns"] - time.time_ns()) < 600e9
    older = secured.ask("GET", f"/api/v1/audit?before={trace['id']}", "admin").json()["records"]
    assert all(each["id"] < trace["id"] for each in older)
    assert "create the-admin" in [each["what"] for each in older]
    assert audit_cli.main(["--db", secured.db, "--limit", "2"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("the-admin") == 2
    assert '"kind":"trace"' in shown


def ended_records(secured: Secured) -> list[dict[str, Any]]:
    """The two newest: what is done is recorded before it is, and its status after it was answered."""
    for _ in range(100):
        records: list[dict[str, Any]] = secured.ask("GET", "/api/v1/audit?limit=2", "admin").json()["records"]
        if all(each["status"] is not None for each in records):
            break
        time.sleep(0.05)
    return records


def test_nothing_is_done_that_cannot_be_recorded(app: Callable[..., TestClient], tmp_path: Path) -> None:
    client = app()
    assert client.post("/api/v1/ingest", content=wire.encode(opening(KNOWN))).status_code == 202
    (tmp_path / "a.db.access").mkdir()
    answer = client.delete("/api/v1/runs/1")
    assert (answer.status_code, answer.json()["code"]) == (503, "no_audit")
    assert [run["name"] for run in client.get("/api/v1/runs").json()["runs"]] == ["run"]


def test_a_public_address_needs_a_token_of_some_kind(tmp_path: Path) -> None:
    settings = Settings(host="0.0.0.0", db=str(tmp_path / "a.db"))
    with pytest.raises(SettingsError, match=r"refusing to listen on 0\.0\.0\.0 without a token"):
        check_reach(settings, lambda: serve._has_tokens(settings))
    create(settings.db, "ana", "view")
    check_reach(settings, lambda: serve._has_tokens(settings))
    revoke(settings.db, "ana")
    with pytest.raises(SettingsError):
        check_reach(settings, lambda: serve._has_tokens(settings))


@pytest.mark.slow
def test_the_first_token_of_an_empty_postgres(empty_postgres_url: str, start_server: Callable[..., Server]) -> None:
    """As a container is set up: the token before the server, which is refused without."""
    settings = Settings(host="0.0.0.0", db=empty_postgres_url)
    assert not serve._has_tokens(settings)
    token = create(empty_postgres_url, "ana", "admin")
    assert serve._has_tokens(settings)
    store = AccessStore(make_url(empty_postgres_url))
    assert [each.what for each in store.records(5)] == ["create ana"]
    store.dispose()
    assert start_server(db=empty_postgres_url).client.get("/api/v1/runs", headers=bearer(token)).status_code == 200
