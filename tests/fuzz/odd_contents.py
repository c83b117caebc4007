"""Messages that are well formed and may be taken, with contents that no agent sends: free details are anybody's."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from rangewatch import statistics, wire
from rangewatch.wire.records import Batch, Catalogue, Event, RankInfo, Samples, StreamHeader
from tests.browser import hand_made_health as health
from tests.server.records import batch, catalogue

RUN = "odd"
KNOWN = catalogue(3)
NOW_NS = 1_790_000_000_000_000_000
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2**64 - 1, 0.5, -1e300, "", "x", [], [[1]], [None], {}, {"a": []}, {"ok": 1},
    [{"name": []}], "9" * 400,
)  # fmt: skip
NUMBERS = (-1.0, -1e300, 1e300, 2.0**63, 0.5, float("inf"), float("-inf"), float("nan"))
USUAL = {
    "dropped": {"queue_full": 3}, "fault": {"place": 2}, "not_observed": {"lm_head": "output: sparse tensor"},
    "not_fused": {"cuda:0": "no triton"}, "other_values": {"blocks.0": {"input[0]": "None"}},
    "allowed_inf": {"fqn": "blocks.0.ff", "kind": "output", "index": 0, "inf_count": 3},
    "command": {"id": 1, "state": "done", "first_step": 1, "last_step": 2, "reason": ""},
    "attached": {"options": {"kinds": ["output"]}}, "failed": {"type": "RuntimeError"}, "level": {"level": "frames"},
    "spool_merged": {"first_step": 0, "last_step": 3, "steps_a_row": 2},
    "died": {"exit_code": None, "signal": 11, "signal_name": "SIGSEGV", "phase": "forward", "module": "blocks.0",
             "collectives": [{"op": "all_reduce", "sequence": 3}], "stack": "File", "last": 3, "next": 4},
    "hang": health.hang(0, different=False), "stacks": {"text": health.STACKS},
}  # fmt: skip


def opening() -> StreamHeader:
    """Of the run that all this is sent to."""
    return StreamHeader(RankInfo(RUN, 0, 2, 0, "host", "a", NOW_NS), KNOWN)


def batches(each: int) -> Iterator[tuple[str, Batch]]:
    """Of all oddities `each`-th, one in each batch, with a name; the sequences are their numbers."""
    for sequence, (name, events, samples) in itertools.islice(enumerate(_contents()), 0, None, each):
        found = batch(KNOWN, sequence, [sequence], run=RUN, events=events, series={"loss": 1.0, "step_time_s": 0.1})
        yield name, msgspec.structs.replace(found, samples=samples)


def _contents() -> Iterator[tuple[str, tuple[Event, ...], tuple[Samples, ...]]]:
    now_ns = time.time_ns()
    usual = list(USUAL.items()) + [(each.kind, each.data) for each in health.events(3, now_ns)]
    for kind, data in usual:
        for path, other in _changed(data):
            yield f"event {kind} {path}", (Event(kind, now_ns, 3, "words", other),), ()
    for table in (health.collectives(0), health.card(0, now_ns), health.host(0, now_ns)):
        for path, other in _changed(table.about):
            yield f"facts {table.source} {path}", (), (msgspec.structs.replace(table, about=other),)
        for name, values in table.columns.items():
            for number in NUMBERS:
                if name != "step" or number == -1.0:
                    columns = table.columns | {name: np.full(len(values), number)}
                    yield (
                        f"column {table.source} {name} {number}",
                        (),
                        (msgspec.structs.replace(table, columns=columns),),
                    )


def _changed(value: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The map with one thing in it odd, everywhere in it; of a list its first item."""
    for key, kept in value.items():
        for number, odd in enumerate(ODD):
            yield f"{key}={number}", value | {key: odd}
        yield f"{key} missing", {name: each for name, each in value.items() if name != key}
        inside = kept[0] if isinstance(kept, list) and kept else kept
        if isinstance(inside, dict):
            for path, other in _changed(inside):
                yield f"{key}.{path}", value | {key: [other, *kept[1:]] if isinstance(kept, list) else other}


def openings() -> Iterator[tuple[str, StreamHeader, Batch, Batch]]:
    """Catalogues that say something else of known statistics, or too little, each a run of its own, with an odd
    batch and a usual one."""
    known = statistics.ALL
    for each in known:
        for field, odd in (("merge", "max"), ("merge", "min"), ("merge", "sum"), ("unit", "apples"),
                           ("identity", float("nan")), ("identity", float("inf")), ("identity", -5.0)):  # fmt: skip
            if getattr(each, field) != odd:
                changed = msgspec.structs.replace(each, **{field: odd})
                yield _run(f"{each.name} {field} {odd}", tuple(changed if one is each else one for one in known))
        yield _run(f"without {each.name}", tuple(one for one in known if one is not each))
    for name in (
        "amax_step",
        "nonfinite_step",
        "",
        "*",
        "exponent_0",
        "exponent_-149",
        "exponent_--5",
        "exponent_007",
        "exponent_\u0665",
    ):
        yield _run(f"with {name}", (*known, msgspec.structs.replace(known[2], name=name)))


def _run(name: str, chosen: tuple[Any, ...]) -> tuple[str, StreamHeader, Batch, Batch]:
    made = Catalogue(chosen, KNOWN.tensors + KNOWN.tensors[:1])
    names, digest = {each.name for each in chosen}, wire.catalogue_digest(made)

    def rows(sequence: int, columns: dict[str, Any]) -> Batch:
        found = batch(KNOWN, sequence, range(3 * sequence, 3 * sequence + 3), columns, run=name)
        assert found.ranges is not None
        kept = {key: values for key, values in found.ranges.columns.items() if key in names}
        return msgspec.structs.replace(
            found, catalogue=digest, ranges=msgspec.structs.replace(found.ranges, columns=kept)
        )

    odd = {each.name: np.inf for each in chosen if each.merge != "max"}
    info = RankInfo(name, 0, 1, 0, "host", "a", NOW_NS)
    return name, StreamHeader(info, made), rows(1, odd), rows(0, {})
