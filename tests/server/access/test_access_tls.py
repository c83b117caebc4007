"""https with a certificate made here, and files that are none."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from rangewatch import wire
from rangewatch.delivery.transport import Outcome, Transport
from rangewatch_server.core.settings import Settings, SettingsError, check
from rangewatch_server.http import probe
from rangewatch_server.http.tls import tls_context
from tests import forked
from tests.server.certificates import Pair, made, until_it_listens
from tests.server.databases import lay_tables
from tests.server.process import Server
from tests.server.records import catalogue, opening

KNOWN = catalogue(2)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return made(tmp_path_factory.mktemp("tls"), "own")


@pytest.fixture(scope="module")
def secure(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that speaks https."""
    arguments = ["--tls-cert", pair.cert, "--tls-key", pair.key, "--token", "s3cret"]
    db = tmp_path_factory.mktemp("https") / "a.db"
    lay_tables(f"sqlite:///{db}")
    command = ["-m", "rangewatch", "serve", "--port", "0", "--db", db, *arguments]
    with forked.server.start(*command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        until_it_listens(url)
        yield url
        process.terminate()


def test_pages_commands_and_agents_over_https(secure: str, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    assert secure.startswith("https://127.0.0.1:")
    with httpx.Client(base_url=secure, verify=pair.trust(), timeout=30) as browser:
        # On port 80 of this name anybody on the way answers; its pages have the same host in their Origin.
        unencrypted = {"Origin": secure.replace("https", "http")}
        assert browser.post("/login", data={"token": "s3cret"}, headers=unencrypted).status_code == 403
        entered = browser.post("/login", data={"token": "s3cret"}, headers={"Origin": secure})
        assert entered.status_code == 204
        assert "; secure" in entered.headers["set-cookie"].lower()
        assert browser.get("/api/v1/runs").status_code == 200
    monkeypatch.setenv("SSL_CERT_FILE", pair.cert)  # as a job is told of its site's own authority
    agent = Transport(secure, "s3cret")
    assert agent.post(wire.encode(opening(KNOWN))).outcome is Outcome.STORED
    agent.close()
    environment = os.environ | {"RANGEWATCH_TOKEN": "s3cret", "RANGEWATCH_URL": secure}
    assert forked.server.run("-m", "rangewatch", "prune", "--dry-run", env=environment, timeout=60).returncode == 0


def test_who_does_not_know_the_certificate_sends_nothing(secure: str) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(secure)
    agent = Transport(secure, "s3cret")
    reply = agent.post(wire.encode(opening(KNOWN)))
    agent.close()
    assert (reply.outcome, reply.is_answered) == (Outcome.RETRY, False)
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(secure.replace("https", "http"))


BAD_FILES: tuple[tuple[Callable[[Pair, Pair], tuple[str, str]], str], ...] = (
    (lambda pair, other: (f"{pair.cert}.none", pair.key), "--tls-cert .*: No such file"),
    (lambda pair, other: (pair.cert, "/"), "--tls-key /: Is a directory"),
    (lambda pair, other: (pair.key, pair.key), "not a PEM certificate chain and its key"),
    (lambda pair, other: (pair.cert, pair.cert), "not a PEM certificate chain and its key"),
    (lambda pair, other: (pair.cert, other.key), "the key is not that of the certificate"),
)


def test_bad_files_are_said(pair: Pair, tmp_path: Path) -> None:
    other = made(tmp_path, "other")
    for spoil, says in BAD_FILES:
        with pytest.raises(SettingsError, match=says) as refused:
            tls_context(*spoil(pair, other))
        assert "\n" not in str(refused.value)


def test_an_encrypted_key_is_not_asked_for(pair: Pair, tmp_path: Path) -> None:
    locked = str(tmp_path / "locked.key")
    command = f"openssl ec -in {pair.key} -aes256 -passout pass:x -out {locked}"
    subprocess.run(command.split(), check=True, capture_output=True)
    with pytest.raises(SettingsError, match="--tls-key is encrypted"):
        tls_context(pair.cert, locked)


def test_one_without_the_other_is_said() -> None:
    with pytest.raises(SettingsError, match="give both, or neither"):
        check(Settings(tls_cert="a.pem"))
    with pytest.raises(SettingsError, match="--forwarded-allow-ips 'proxy'"):
        check(Settings(forwarded_allow_ips="127.0.0.1,proxy"))
    for given in ("", "*", "127.0.0.1, 10.0.0.0/8,::1"):
        check(Settings(forwarded_allow_ips=given))


def test_a_proxy_that_would_never_be_believed_is_said() -> None:
    """uvicorn takes what it cannot read for a name that nobody has, without a word."""
    for given in ("10.0.0.1/8", "127.0.0.1,*", "*,*", "127.0.0.1,,", "[::1]", "127.0.0.1:80"):
        with pytest.raises(SettingsError, match="--forwarded-allow-ips"):
            check(Settings(forwarded_allow_ips=given))


def test_a_server_that_was_given_bad_files_does_not_start(tmp_path: Path) -> None:
    command = ["-m", "rangewatch", "serve", "--db", tmp_path / "a.db"]
    wrong = ["--tls-cert", tmp_path / "no.pem", "--tls-key", tmp_path / "no.key"]
    done = forked.server.run(*command, *wrong, timeout=30)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert not (tmp_path / "a.db").exists()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_health_check_knows_the_port_and_the_scheme(
    secure: str, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], scheme: str
) -> None:
    url = secure if scheme == "https" else server.url
    monkeypatch.setenv("RANGEWATCH_PORT", url.rpartition(":")[2])
    monkeypatch.setenv("RANGEWATCH_TLS_CERT", "/a/cert.pem" if scheme == "https" else "")
    assert [probe.main(path) for path in ("/readyz", "/healthz", "/api/v1/nowhere")] == [0, 0, 1]
    monkeypatch.setenv("RANGEWATCH_TLS_CERT", "" if scheme == "https" else "/a/cert.pem")
    assert probe.main("/readyz") == 1
    monkeypatch.setenv("RANGEWATCH_PORT", "9")
    assert probe.main("/readyz") == 1 and "no answer from port 9" in capsys.readouterr().err
