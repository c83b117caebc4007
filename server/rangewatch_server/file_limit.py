"""How many files this process may open, and how many of them connections may be."""

from __future__ import annotations

import sys
from typing import NamedTuple

from rangewatch_server.client_connections import MAX_CONNECTIONS

if sys.platform != "win32":
    import resource

# Kept for the database, SQLite's file of tokens, backups, exports and the refused. Were connections to take all files,
# no token could be read and nothing committed.
OTHER_FILES = 200
BACKLOG = 2_048  # as uvicorn has it: a fleet that comes back at once


class Files(NamedTuple):
    """What may be open at once."""

    connections: int
    backlog: int
    """Connections that asyncio accepts in one go, before any of them is counted."""


def raise_file_limit() -> Files:
    """Let this process open as many files as it needs, as far as the system allows: 1024 is a usual limit."""
    wanted = MAX_CONNECTIONS + BACKLOG + OTHER_FILES
    if sys.platform == "win32":
        return Files(MAX_CONNECTIONS, BACKLOG)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    backlog = min(BACKLOG, most // 8)
    return Files(max(min(most - backlog - OTHER_FILES, MAX_CONNECTIONS), most // 2), backlog)
