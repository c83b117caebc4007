"""Pages of other sites, and names that are not ours: Host, Origin and what browsers say of where they come from."""

from __future__ import annotations

import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from tests.server.process import Run, Server
from tests.server.records import catalogue, opening
from tests.server.tokens import bearer

KNOWN = catalogue(2)
WRITES = [
    ("POST", "/api/v1/ingest"), ("POST", "/api/v1/runs/1/commands"), ("DELETE", "/api/v1/runs/1/commands/1"),
    ("DELETE", "/api/v1/runs/1"), ("POST", "/api/v1/prune"), ("PUT", "/api/v1/restore"), ("POST", "/login"),
    ("POST", "/logout"), ("POST", "/no/such/route"),
]  # fmt: skip
ELSEWHERE = [
    {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"}, {"Origin": "http://127.0.0.1:1"}, {"Origin": ""}, {"Sec-Fetch-Site": "odd"},
    {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "cross-site"},
]  # fmt: skip


@pytest.fixture(scope="module")
def server(served: Server, module_run: Run) -> Server:
    """One with a run; nobody is asked for a token, as on a workstation."""
    assert module_run.post(opening(KNOWN)).status_code == 202
    return served


def test_nothing_is_changed_by_another_site(server: Server, module_run: Run) -> None:
    for method, path in WRITES:
        path = path.replace("runs/1", f"runs/{module_run.id}")
        for headers in ELSEWHERE:
            answer = server.client.request(method, path, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "wrong_origin"), (path, headers)
        ours = [{}, {"Origin": server.url}, {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}]
        for headers in ours if path in ("/login", "/no/such/route") else []:
            assert server.client.request(method, path, headers=headers).status_code != 403, (path, headers)
    assert module_run.get()["name"] == module_run.name


def test_another_site_may_link_here_and_fetch_nothing(server: Server, module_run: Run) -> None:
    def status(path: str, **headers: str) -> int:
        return server.client.get(
            path, headers={f"Sec-Fetch-{name}": value for name, value in headers.items()}
        ).status_code

    run = module_run.path()
    for site in ("cross-site", "same-site"):
        assert status("/api/v1/runs", Site=site, Mode="no-cors") == 403
        assert status("/metrics", Site=site, Mode="cors") == 403
        assert status("/api/v1/backup", Site=site, Mode="navigate") == 403, "not even by a link"
        assert status(run, Site=site, Mode="navigate") == 200
        assert status(f"/runs/{module_run.id}", Site=site, Mode="navigate") == 200
    assert status(run, Site="cross-site", Mode="navigate", Dest="document") == 200
    for dest in ("iframe", "frame", "embed", "object"):
        assert status(run, Site="cross-site", Mode="navigate", Dest=dest) == 403, "a link that nobody sees"
    assert status("/api/v1/runs", Site="same-origin", Mode="cors") == 200


def test_what_may_be_two_requests_is_none(server: Server) -> None:
    """A proxy that goes by the one length and a server that goes by the other: the rest is somebody's request."""
    both = "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    hidden = "GET /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    said = answered(server, f"POST /logout HTTP/1.1\r\nHost: 127.0.0.1\r\n{both}{hidden}")
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"two_lengths"' in said
    assert said.count(b"HTTP/1.1") == 1


HOSTS = (
    "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.1@evil.example", "", "0.0.0.0",
    "[::ffff:93.184.216.34]", "127.0.0.1:8642.evil.example", "evil@127.0.0.1",
    "127.0.0.1/evil.example", "127.0.0.1#evil.example", "a b", "[", "169.254.169.254",
)  # fmt: skip


def test_a_rebound_name_is_refused(server: Server, module_run: Run) -> None:
    """Raw, since a client's library would tidy the name."""
    for host in HOSTS:
        said = answered(server, f"GET /api/v1/runs HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
        assert b" 200 " not in said.split(b"\r\n")[0], (host, said)
        assert module_run.name.encode() not in said


def test_two_names_are_none(server: Server) -> None:
    two = "Host: 127.0.0.1\r\nHost: evil.example\r\n"
    said = answered(server, f"GET /api/v1/runs HTTP/1.1\r\n{two}Connection: close\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 400")
    assert answered(server, "GET /api/v1/runs HTTP/1.1\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 400")


def test_every_answer_has_the_security_headers(server: Server) -> None:
    library = "/static/vendor/plotly-cartesian.min.js"
    for path in ("/", "/static/shell/app.js", library, "/api/v1/runs", "/api/v1/none", "/healthz"):
        headers = server.client.get(path).headers
        policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'self'", path
        assert "script-src" not in policy, "scripts are of this server's files only"
        assert (policy["frame-ancestors"], policy["object-src"], policy["base-uri"]) == ("'none'",) * 3
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers
    refused = server.client.get("/api/v1/runs", headers={"Host": "evil.example"})
    assert refused.headers["content-security-policy"]


def test_no_answer_leads_elsewhere(server: Server) -> None:
    for path in (
        "//evil.example/",
        "//evil.example/api/v1/runs/",
        "/api/v1/runs/",
        "/\\evil.example",
        "/%2f/evil.example",
        "?x=1",
    ):
        said = answered(server, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert b"\r\nlocation:" not in said.lower(), path


def test_a_token_in_the_address_lets_nobody_in(start_server: Callable[..., Server]) -> None:
    server = start_server("--token", "s3cret-in-url", "--log-level", "debug")
    for query in ("token=s3cret-in-url", "access_token=s3cret-in-url", "authorization=Bearer%20s3cret-in-url"):
        assert server.client.get(f"/api/v1/runs?{query}").status_code == 401
    assert server.client.get("/api/v1/runs", headers=bearer("s3cret-in-url")).status_code == 200
    server.process.terminate()
    out, _ = server.process.communicate(timeout=20)
    said = server.log.whole()
    assert "path=/api/v1/runs" in said
    assert "s3cret-in-url" not in out + said


def answered(server: Server, request: str) -> bytes:
    """What a server says to bytes as they are."""
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port)) as plain:
        plain.sendall(request.encode())
        return b"".join(iter(lambda: plain.recv(65536), b""))
