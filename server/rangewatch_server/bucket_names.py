"""The parameters of DDP's buckets, where the records that are shown lack them: ranks tell them once a minute."""

from __future__ import annotations

from typing import Any

import msgspec

from rangewatch_server import deadline
from rangewatch_server.queries import RunReader
from rangewatch_server.store.samples import SamplesError, decode

MOST_RANKS = 4  # that are asked: all ranks of a model have the same buckets
MOST_CHUNKS = 64  # of each: two minutes of a rank that sends every two seconds


def bucket_names(run: RunReader, source: str, last_step: int) -> Any:
    """What any rank's newest process has told of its buckets last, until `last_step` or later; {} for nothing."""
    for rank in sorted(run.ranks)[:MOST_RANKS]:
        for payload in run.payloads(rank, source, last_step, MOST_CHUNKS):
            deadline.check()
            found = _told(payload)
            if found:
                return found
    return {}


def _told(payload: bytes) -> Any:
    try:
        parts = decode(payload)
    except SamplesError:
        return {}
    for part in reversed(parts):
        about = msgspec.json.decode(part.about)
        if isinstance(about, dict) and isinstance(found := about.get("buckets"), (dict, list)) and found:
            return found
    return {}
