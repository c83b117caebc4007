"""Certificates made on the spot."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from rangewatch_server.http.tls import tls_context


class Pair(NamedTuple):
    """Files."""

    cert: str
    key: str

    def context(self) -> ssl.SSLContext:
        """To serve with."""
        return tls_context(self.cert, self.key)

    def trust(self) -> ssl.SSLContext:
        """To connect with."""
        return ssl.create_default_context(cafile=self.cert)


def made(folder: Path, name: str, names: str = "IP:127.0.0.1") -> Pair:
    """A self-signed certificate of 127.0.0.1 and its key."""
    pair = Pair(str(folder / f"{name}.pem"), str(folder / f"{name}.key"))
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=127.0.0.1 "
        f"-addext subjectAltName={names} -keyout {pair.key} -out {pair.cert}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return pair


def until_it_listens(url: str) -> None:
    """Wait for a server that says where it will be before it is there: a test's own time limit ends it."""
    where = urlsplit(url)
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection((where.hostname, where.port)):
            return
        time.sleep(0.01)
