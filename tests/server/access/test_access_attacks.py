"""What an attacker tried, and what a stranger runs into: files that go, guesses in others' names, odd settings."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from starlette.datastructures import Headers

from rangewatch_server.access import token_cli
from rangewatch_server.access.audit import client_of
from rangewatch_server.access.middleware import is_our_host, may_read
from rangewatch_server.access.principals import Principals
from rangewatch_server.access.rate_limits import ALL_LOGINS, LOGIN, Rate, RateLimit, counted_as
from rangewatch_server.core import logs
from rangewatch_server.core.errors import ApiError
from rangewatch_server.core.settings import Settings, SettingsError, check
from rangewatch_server.store.tokens import AccessStore
from tests.server.process import Server
from tests.server.tokens import bearer, create


def test_tokens_that_are_gone_open_nothing(tmp_path: Path) -> None:
    """A disk that is not there any more, while a proxy passes the world on to loopback."""
    settings = Settings(db=str(tmp_path / "a.db"))
    principals = Principals(settings, AccessStore(settings.database_url))
    principals.load()
    here = Headers({"host": "127.0.0.1"})
    assert may_read(here, principals), "nobody is asked for a token yet"
    token = create(settings.db, "ana", "view")
    principals.load()
    assert not may_read(here, principals)
    file = Path(f"{settings.db}.access")
    kept = file.rename(tmp_path / "kept")
    principals.load()
    assert not may_read(here, principals)
    assert not may_read(Headers({"host": "127.0.0.1", **bearer(token)}), principals)
    kept.rename(file)
    principals.load()
    assert may_read(Headers({"host": "127.0.0.1", "authorization": f"Bearer {token}"}), principals)


def test_guesses_keep_nobody_out(start_server: Callable[..., Server], tmp_path: Path) -> None:
    """Neither those from one's own address, behind a proxy that is believed, nor those from everywhere; and one who
    has a token is counted, too.
    """
    db = str(tmp_path / "a.db")
    token = create(db, "ana", "view")
    server = start_server("--forwarded-allow-ips", "127.0.0.1", db=db)

    def login(said: str, address: str) -> httpx.Response:
        headers = {"X-Forwarded-For": address, "X-Forwarded-Proto": "https"}
        answer = server.client.post("/login", data={"token": said}, headers=headers)
        server.client.cookies.clear()
        return answer

    def tries(said: str, addresses: Iterator[str]) -> int:
        """How many are not limited."""
        return len(list(itertools.takewhile(lambda address: login(said, address).status_code != 429, addresses)))

    assert tries("guess", itertools.repeat("203.0.113.9")) >= LOGIN.burst
    entered = login(token, "203.0.113.10")
    assert entered.status_code == 204, "another client"
    assert "secure" in entered.headers["set-cookie"].lower(), "the browser speaks https to the proxy"
    everywhere = (f"198.51.{each // 250}.{each % 250}" for each in itertools.count())
    assert tries("guess", everywhere) >= ALL_LOGINS.burst - 2 * LOGIN.burst, "all together are limited"
    assert tries(token, itertools.repeat("203.0.113.9")) >= LOGIN.burst - 1, "who knows the token gets in"


def test_a_network_of_ipv6_is_one_client() -> None:
    limit = RateLimit("tries", Rate(2, 1), Rate(100, 1))
    for address in ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2%eth0"):
        limit.take(address)
    with pytest.raises(ApiError):
        limit.take("2001:db8:0:1:2:3:4:5")
    limit.take("2001:db8:0:2::1")
    assert counted_as("::ffff:203.0.113.9") == "203.0.113.9"
    assert counted_as("203.0.113.9") == "203.0.113.9"
    assert counted_as("what a proxy said") == "what a proxy said"


def test_an_address_of_any_length_is_cut() -> None:
    assert len(client_of({"client": ("x" * 10_000, 0)})) == 64
    assert client_of({"client": ("2001:db8:1111:2222:3333:4444:5555:6666", 0)}).endswith(":6666")


@pytest.mark.parametrize(("given", "host"), [
    ("Rangewatch.Example", "rangewatch.example"), ("rangewatch.example:8443", "rangewatch.example:8443"),
    ("rangewatch.example:8443", "rangewatch.example"), ("rangewatch.example", "RANGEWATCH.example:1"),
    ("fd00::1", "[fd00::1]:8642"), ("[fd00::1]", "[fd00::1]"),
])  # fmt: skip
def test_names_are_as_a_person_writes_them(given: str, host: str, tmp_path: Path) -> None:
    settings = check(Settings(allowed_hosts=(given,), db=str(tmp_path / "a.db")))
    principals = Principals(settings, AccessStore(settings.database_url))
    assert is_our_host(host, principals)
    assert not is_our_host("evil.example", principals)
    assert not is_our_host("", principals)


def test_what_could_never_match_is_said_at_the_start() -> None:
    """No header brings such a token, and no browser such a name: all would be locked out without a word."""
    for wrong in (
        {"allowed_hosts": ("https://a.example",)}, {"allowed_hosts": ("a b:x",)}, {"token": "p\u00e4sswort"},
        {"token": "x "}, {"token": "a\nb"}, {"token": "x" * 5_000},
    ):  # fmt: skip
        with pytest.raises(SettingsError, match=r"^--(token|allow-host)") as refused:
            check(Settings(**wrong))  # type: ignore[arg-type]
        assert "passwort" not in str(refused.value)
    check(Settings(token="a pass phrase", allowed_hosts=("a.example",)))


def test_a_database_that_is_not_the_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is made by a command that looks or ends; one that makes says where no server was yet."""
    db = str(tmp_path / "typo" / "a.db")
    assert token_cli.main(["revoke", "ana", "--db", db]) == 1
    assert token_cli.main(["list", "--db", db]) == 0
    assert not (tmp_path / "typo").exists()
    assert token_cli.main(["list", "--db", "mysql://x/y"]) == 2
    assert capsys.readouterr().err.endswith(
        "cannot use mysql: give sqlite:///FILE or postgresql://USER@HOST:PORT/NAME\n"
    )
    assert token_cli.main(["create", "ana", "--role", "view", "--db", db]) == 0
    assert f"No server has used {db} yet" in capsys.readouterr().err
    Path(db).touch()
    assert token_cli.main(["create", "bob", "--role", "view", "--db", db]) == 0
    assert "No server" not in capsys.readouterr().err


def test_a_link_to_the_database_has_the_same_tokens(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
    create(str(tmp_path / "link.db"), "ana", "view")
    for name in ("a.db", "link.db"):
        for url in (str(tmp_path / name), f"sqlite:///{tmp_path / name}"):
            assert [each.name for each in AccessStore(Settings(db=url).database_url).read().tokens] == ["ana"], url


def test_a_stranger_does_not_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn warns of each request that is none: 100 bytes of log for a byte of anybody's."""
    now_s = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    seldom = logs._RateLimited()

    def is_said(text: str, level: int = logging.WARNING) -> bool:
        return bool(seldom.filter(logging.LogRecord("uvicorn.error", level, "", 0, text, (), None)))

    assert [is_said("invalid"), is_said("invalid"), is_said("other")] == [True, False, True]
    assert [is_said("failed", logging.ERROR), is_said("failed", logging.ERROR)] == [True, True]
    now_s += 61
    assert is_said("invalid")


def test_garbage_is_logged_once(start_server: Callable[..., Server]) -> None:
    server = start_server()
    for _ in range(5):
        server.client.request("GET", "/healthz", headers={"Connection": "Upgrade", "Upgrade": "websocket"})
    server.stop()
    assert server.log.whole().count("Unsupported upgrade request") == 1


def test_wrong_tokens_are_slowed_and_right_ones_are_not(start_server: Callable[..., Server]) -> None:
    """3,000 wrong ones in a row were answered as fast as the first."""
    server = start_server("--token", "a right one")
    guesses = [server.client.get("/api/v1/runs", headers=bearer(f"guess {number}")) for number in range(130)]
    assert {each.status_code for each in guesses[:100]} == {401}
    assert guesses[-1].status_code == 429 and int(guesses[-1].headers["retry-after"]) >= 1
    assert guesses[-1].json()["code"] == "too_often"
    for _ in range(3):
        assert server.client.get("/api/v1/runs", headers=bearer("a right one")).status_code == 200
    assert server.client.get("/api/v1/runs").status_code == 401, "who sends none guesses nothing"
