"""What runs were set otherwise: their options, versions, settings and environments, key by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rangewatch.wire.events import Environment
from rangewatch_server.machines.mesh import world_size
from rangewatch_server.query.reader import RunReader

MOST_KEYS = 2_000  # of a run
MOST_DIFFERENCES = 200
MOST_LETTERS = 200  # of a value
MOST_DEPTH = 6
# What is otherwise at each start, and says nothing of how a run was set.
_OF_ONE_START = ("pid", "free_bytes", "used_bytes", "available_bytes", "uptime_s", "time_ns", "deep")
_OF_ONE_RUN = frozenset(("options.run", "options.spool_dir"))


def differences(runs: Sequence[RunReader]) -> dict[str, Any]:
    """`differences`: those keys whose values are not equal in all runs, with a value a run, None where it has none;
    `same`: how many keys are equal; `more`: differences that are not listed.
    """
    by_run = [dict(_values(run)) for run in runs]
    keys = list(dict.fromkeys(key for values in by_run for key in values))
    rows = [(key, [values.get(key) for values in by_run]) for key in keys]
    differ = [{"key": key, "values": values} for key, values in rows if len(set(values)) > 1]
    shown = differ[:MOST_DIFFERENCES]
    return {"differences": shown, "same": len(rows) - len(differ), "more": len(differ) - len(shown)}


def _values(run: RunReader) -> Iterator[tuple[str, str]]:
    """As its first rank has them, by key."""
    if not run.ranks:
        return
    first = run.ranks[min(run.ranks)]
    info = first.info
    yield "run.ranks", str(world_size(run))
    yield "run.device", _cut(info.device)
    yield "run.loss scaler", "yes" if run.is_loss_scaled((first.rank,)) else "no"
    yield from (("versions." + name, _cut(version)) for name, version in sorted(info.versions.items()))
    sections = {"options": _options(run, first.rank), "environment": _environment(run, first.rank)}
    left = MOST_KEYS
    for name, section in sections.items():
        for key, value in _flat(name, section, MOST_DEPTH):
            left -= 1
            if left < 0:
                return
            yield key, value


def _options(run: RunReader, rank: int) -> Mapping[str, Any]:
    newest = next(iter(run.events("attached", 1, rank=rank)), None)
    details = None if newest is None else _decoded(newest.data)
    options = details.get("options") if isinstance(details, Mapping) else None
    return options if isinstance(options, Mapping) else {}


def _environment(run: RunReader, rank: int) -> Mapping[str, Any]:
    newest = next((event for event in run.newest_events([Environment.KIND]) if event.rank == rank), None)
    read = None if newest is None else newest.read(Environment)
    return {} if read is None else read.facts


def _decoded(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.MsgspecError:
        return None


def _flat(key: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    """Leaves by their path; a list is one leaf. What came over the wire may be of any shape."""
    if isinstance(value, Mapping) and depth:
        for name in sorted(value, key=str):
            if name not in _OF_ONE_START:
                yield from _flat(f"{key}.{name}"[:MOST_LETTERS], value[name], depth - 1)
    elif key not in _OF_ONE_RUN:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        yield key, _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "…"
