"""Behind nginx with the configuration of docs/security.md, as it stands there."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from rangewatch import wire
from rangewatch_server.access.rate_limits import ALL_LOGINS
from tests.server.certificates import Pair, made, until_it_listens
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening
from tests.server.tokens import bearer

NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
DOCUMENT = Path(__file__).parents[3] / "docs/security.md"
NAME = "rangewatch.example"
KNOWN = catalogue(2)


class Behind(NamedTuple):
    server: Server
    client: httpx.Client


def documented(server: Server, pair: Pair, port: int) -> str:
    """The block of the page, with this test's ports and files."""
    found = re.search(r"```nginx\n(.*?)```", DOCUMENT.read_text(), re.S)
    assert found is not None
    block = found[1].replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
    block = block.replace("http://127.0.0.1:8642", server.url)
    return block.replace("chain.pem", pair.cert).replace("key.pem", pair.key)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.fixture
def behind(start_server: Callable[..., Server], tmp_path: Path) -> Iterator[Behind]:
    server = start_server("--token", "s3cret", "--allow-host", NAME, "--forwarded-allow-ips", "127.0.0.1")
    pair, port = made(tmp_path, "own"), free_port()
    places = " ".join(
        f"{each}_temp_path {tmp_path / each};" for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = f"daemon off; pid {tmp_path / 'pid'}; error_log stderr; events {{}} http {{ access_log off; {places}\n"
    file = tmp_path / "nginx.conf"
    user = "user root;\n" if os.geteuid() == 0 else ""
    file.write_text(f"{user}{text}{documented(server, pair, port)}}}\n")
    trust = ssl.create_default_context(cafile=pair.cert)
    with subprocess.Popen([NGINX, "-p", str(tmp_path), "-c", str(file)]) as nginx:
        url = f"https://127.0.0.1:{port}"
        until_it_listens(url)
        with httpx.Client(base_url=url, verify=trust, headers={"Host": NAME}, timeout=30) as client:
            yield Behind(server, client)
        nginx.terminate()


@pytest.mark.slow
def test_everything_works_behind_nginx(behind: Behind) -> None:
    client = behind.client
    ours = {"Origin": f"https://{NAME}", "Sec-Fetch-Site": "same-origin"}
    entered = client.post("/login", data={"token": "s3cret"}, headers=ours)
    assert entered.status_code == 204
    assert "; secure" in entered.headers["set-cookie"].lower()
    token = bearer("s3cret")
    assert client.post("/api/v1/ingest", content=wire.encode(opening(KNOWN)), headers=token).status_code == 202
    with client.stream("GET", "/api/v1/live", headers=token) as live:
        lines = live.iter_lines()
        assert next(line for line in lines if line.startswith(":")) == ": connected"
        behind.server.post(batch(KNOWN, 0, range(4)), **token)
        assert "last_step" in next(line for line in lines if line.startswith("data:")), "nothing is held back"
    foreign = client.delete("/api/v1/runs/1", headers=token | {"Origin": "https://evil.example"})
    assert foreign.status_code == 403
    backup = client.get("/api/v1/backup", headers=token).content
    restored = client.put("/api/v1/restore", content=backup + bytes(17 << 20), headers=token)
    assert restored.status_code == 200, "larger than a batch may be"
    record = client.get("/api/v1/audit?limit=1", headers=token).json()["records"][0]
    assert record["client"] == "127.0.0.1"
    # Clients cannot make up where they come from: each guess says another address, and nginx says whence they come.
    addresses = ({"X-Forwarded-For": f"203.0.113.{number}"} for number in range(250))
    guesses = (client.post("/login", data={"token": "guess"}, headers=each).status_code for each in addresses)
    assert len(list(itertools.takewhile(lambda status: status == 401, guesses))) < ALL_LOGINS.burst / 2
