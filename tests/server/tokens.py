"""Tokens of a database, as `rangewatch token` makes them."""

from __future__ import annotations

import contextlib
import io
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from rangewatch_server.access import token_cli
from rangewatch_server.access.principals import cookie_name


def create(db: str, name: str, *roles: str) -> str:
    """A new token."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        arguments = [word for role in roles for word in ("--role", role)]
        assert token_cli.main(["create", name, "--db", db, *arguments]) == 0
    return said.getvalue().strip()


def revoke(db: str, name: str) -> None:
    """End one."""
    with contextlib.redirect_stdout(io.StringIO()):
        assert token_cli.main(["revoke", name, "--db", db]) == 0


def cookie_at(url: str) -> str:
    """What the session's cookie is called there."""
    return cookie_name(Headers({"host": urlsplit(url).netloc}))


def bearer(token: str) -> dict[str, str]:
    """The header that carries it."""
    return {"Authorization": f"Bearer {token}"}
