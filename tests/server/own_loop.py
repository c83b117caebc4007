"""Coroutines in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def in_own_loop(made: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine in a thread of its own: a worker that has run browser tests has a loop running already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(made())).result(60)
