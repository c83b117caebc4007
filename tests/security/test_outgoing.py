"""SSRF: CVE-2026-64849, GHSA-cqh9-jfqr-h9jj. A webhook's address that is private, redirects, or changes its mind."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import urllib3

from rangewatch_server.alerts import safe_http
from rangewatch_server.alerts.safe_http import SafeHttpError, may_reach, parse, post
from tests.server.certificates import made

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)
PUBLIC = "93.184.216.34"


class Listener:
    """An HTTP server that remembers what it was asked, and answers as it is told."""

    def __init__(self, status: int = 200, **headers: str) -> None:
        asked = self.asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"] or 0))
                asked.append((self.path, self.headers["host"], body))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(b"the secret of this service")

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.01,)).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def listen() -> Iterator[Callable[..., Listener]]:
    started: list[Listener] = []

    def start(*arguments: Any, **headers: str) -> Listener:
        started.append(Listener(*arguments, **headers))
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.mark.parametrize("host", [
    "127.0.0.1", "localhost", "2130706433", "0x7f.1", "127.1", "0177.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0",
    "[::]", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.100.100.200", "168.63.129.16",
    "[fe80::1]", "[fd00:ec2::254]", "[64:ff9b::a9fe:a9fe]", "[2002:7f00:1::]", "[::ffff:a9fe:a9fe]", "224.0.0.1",
    "[64:ff9b:1::7f00:1]", "255.255.255.255", "192.0.0.192", "198.18.0.1", "[2001:db8::1]", "[ff02::1]", "[fec0::1]",
    "[::7f00:1]", "[2001:0:7f00:1::]", "240.0.0.1", "[::ffff:0:7f00:1]", "[64:ff9b:1:a00:0:100:808:808]", "[5f00::1]",
])  # fmt: skip
def test_no_address_of_ours_is_reached(
    host: str, weakened: bool, listen: Callable[..., Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weakened, the loopback ones of them reach a service of this machine."""
    reached: list[object] = []
    monkeypatch.setattr(safe_http, "_exchange", lambda target, address, *_: reached.append(address) or 200)
    if weakened:
        monkeypatch.setattr(safe_http, "may_reach", lambda address, allowed: True)
    try:
        post(f"http://{host}:8642/api/v1/prune", b"{}", {})
    except SafeHttpError as refused:
        assert "\n" not in str(refused)
    assert bool(reached) == weakened


@pytest.mark.parametrize("address", [PUBLIC, "2606:2800:220:1:248:1893:25c8:1946", "8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses_are_reached(address: str) -> None:
    assert may_reach(ipaddress.ip_address(address))


@pytest.mark.parametrize("url", [
    "file:///etc/passwd", "gopher://127.0.0.1/", "ftp://example.com/", "//example.com/", "example.com", "http://",
    "http:///x", "http://user:hunter2@example.com/", "http://example.com\\@127.0.0.1/", "http://example.com/\r\nX: y",
    "http://exa mple.com/", "http://example.com:99999/", "http://example.com:x/", "http://" + "a" * 3_000,
    "http://ex\u00e4mple.com/", "http://[::1/", "javascript:alert(1)", "http://example.com/\x00",
])  # fmt: skip
def test_what_is_no_webhook(url: str) -> None:
    with pytest.raises(SafeHttpError) as refused:
        parse(url)
    assert "hunter2" not in str(refused.value)


def test_what_is_allowed_is_sent(listen: Callable[..., Listener]) -> None:
    service = listen()
    assert post(f"http://127.0.0.1:{service.port}/hook?a=1#part", b'{"x":1}', {"X-Sent-By": "us"}, LOOPBACK) == 200
    assert service.asked == [("/hook?a=1", f"127.0.0.1:{service.port}", b'{"x":1}')]


@pytest.mark.parametrize(
    "status", [302, *(pytest.param(each, marks=pytest.mark.slow) for each in (301, 303, 307, 308))]
)
def test_a_redirect_is_not_followed(
    status: int, weakened: bool, listen: Callable[..., Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = listen()
    outer = listen(status, Location=f"http://127.0.0.1:{inner.port}/latest/meta-data/")

    def follows(target: safe_http.Target, address: object, body: bytes, headers: dict[str, str]) -> int:
        return urllib3.request(
            "POST", f"http://{address}:{target.port}{target.path}", body=body, headers=headers
        ).status

    if weakened:
        monkeypatch.setattr(safe_http, "_exchange", follows)
    assert post(f"http://127.0.0.1:{outer.port}/", b"{}", {}, LOOPBACK) == (200 if weakened else status)
    assert len(outer.asked) == 1
    assert bool(inner.asked) == weakened


def test_a_name_that_changes_its_mind_is_asked_once(
    weakened: bool, listen: Callable[..., Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Public when it is looked at, loopback when it is connected to."""
    inner = listen()
    says = iter([PUBLIC, "127.0.0.1", "127.0.0.1"])
    real_resolve, real_connect = socket.getaddrinfo, socket.create_connection

    def resolve(host: Any, port: Any, *rest: Any, **named: Any) -> Any:
        return real_resolve(next(says) if host == "rebind.example" else host, port, *rest, **named)

    def connect(address: tuple[str, int], *rest: Any) -> socket.socket:
        if address[0] == PUBLIC:
            raise ConnectionRefusedError(111, "Connection refused")
        return real_connect(address, *rest)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "create_connection", connect)
    if weakened:
        monkeypatch.setattr(
            safe_http, "_connect", lambda target, address: socket.create_connection((target.host, target.port), 5)
        )
    if weakened:
        assert post(f"http://rebind.example:{inner.port}/", b"{}", {}) == 200
    else:
        with pytest.raises(SafeHttpError, match=r"^rebind\.example did not answer: Connection refused$"):
            post(f"http://rebind.example:{inner.port}/", b"{}", {})
    assert bool(inner.asked) == weakened


def test_one_private_address_among_public_ones_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 80)) for each in (PUBLIC, "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(SafeHttpError, match=r"10\.0\.0\.1, which is not public"):
        post("http://mixed.example/", b"", {})


def test_a_proxy_of_the_environment_is_not_used(
    listen: Callable[..., Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, proxy = listen(), listen()
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    assert post(f"http://127.0.0.1:{service.port}/", b"", {}, LOOPBACK) == 200
    assert proxy.asked == []


def test_what_never_ends_is_hung_up_on(weakened: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of the answer each moment, which no timeout between two bytes would end."""
    monkeypatch.setattr(safe_http, "TIMEOUT_S", 0.2)
    if weakened:
        monkeypatch.setattr(safe_http, "_hang_up", lambda plain: None)
    monkeypatch.setattr(http.client, "_MAXHEADERS", 1 << 30)  # else it would give up by itself after a hundred
    listening = socket.create_server(("127.0.0.1", 0))
    sent, ended, hung_up = [], threading.Event(), threading.Event()

    def drip() -> None:
        taken, _ = listening.accept()
        with taken:
            taken.recv(4096)
            taken.sendall(b"HTTP/1.1 200 OK\r\n")
            while not (weakened and len(sent) == 40) and not ended.wait(0.01):
                try:
                    taken.sendall(b"X-More: 1\r\n")
                except OSError:
                    hung_up.set()
                    return
                sent.append(1)
            taken.sendall(b"\r\n")

    thread = threading.Thread(target=drip)
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    if weakened:
        assert post(url, b"", {}, LOOPBACK) == 200
        assert len(sent) == 40
    else:
        with suppress(SafeHttpError):  # it ends, though the answer does not: read as far as it came, or reset
            assert post(url, b"", {}, LOOPBACK) == 200
        assert hung_up.wait(20), "more headers are taken for as long as they come"
    ended.set()
    thread.join()
    listening.close()


def test_over_https_too(weakened: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """TLS takes the socket over. The handle that is hung up on must be one that it left."""
    pair = made(tmp_path, "hook")
    monkeypatch.setenv("SSL_CERT_FILE", pair.cert)
    monkeypatch.setattr(safe_http, "TIMEOUT_S", 0.2)
    if weakened:
        monkeypatch.setattr(safe_http, "_hang_up", lambda plain: None)
    listening = socket.create_server(("127.0.0.1", 0))
    hung_up = threading.Event()

    def drip() -> None:
        taken, _ = listening.accept()
        with pair.context().wrap_socket(taken, server_side=True) as secure:
            secure.recv(4096)
            try:
                for part in (b"HTTP/1.1 200 OK\r\n", *[b"X"] * (40 if weakened else 10_000), b": 1\r\n\r\n"):
                    secure.sendall(part)
                    threading.Event().wait(0.01)
            except OSError:
                hung_up.set()

    thread = threading.Thread(target=drip)
    thread.start()
    post(f"https://127.0.0.1:{listening.getsockname()[1]}/", b"", {}, LOOPBACK)
    thread.join()
    listening.close()
    assert hung_up.is_set() != weakened
