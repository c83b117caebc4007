"""Programs that start at once: forks of a process that has already imported what programs of their kind need.

A server imports for a second before it listens, a rank for two before it trains, and the tests start hundreds of both.
A fork has its own arguments, environment, folder, streams, memory and end, as if Python had been started for it; what
it does not do is import again. Tests of the start itself start Python.

So what is read as a module is imported, or as Python starts, is not the program's: variables of its environment such as
OMP_NUM_THREADS (1 here) are those that the tests were started with, and all forks have one hash seed. A program with
another PYTHONPATH is not forked: Python is started for it.
"""

from __future__ import annotations

from tests.forked.forker import Forker
from tests.forked.process import Forked

__all__ = ["Forked", "Forker", "rank", "server"]

server = Forker(
    "rangewatch_server.http.serve",
    "psycopg",
    "uvicorn.lifespan.on",
    "anyio._backends._asyncio",
    "rangewatch_server.http.static:prepare",
)
"""Of programs that need no torch: the commands. Pages are made once for all servers."""

rank = Forker("rangewatch.api.attachment", "torch.distributed", "torch._dynamo")
"""Of programs that train: torch imports its compiler for the first optimizer, which takes two seconds of each."""
