"""A group's sequence on one rank, cut where it began anew: a restarted process, a group made again."""

from __future__ import annotations

import numpy as np

from rangewatch_server.collectives.records import Array, Records

REORDERED = 64
"""Sequences that may arrive out of order when several threads call collectives: falling farther is a new beginning."""

MAX_GENERATIONS = 8
"""The newest that are kept: older ones are of no use, and nonsense in a column must not cost minutes."""


def generations(run: Records) -> list[Records]:
    """The records of one rank and group, in order of time, as generations, oldest first, each strictly ascending.

    A record that came twice counts once, with the duration that is known. Coalesced operations share a sequence: they
    become one record, of all their bytes, whose size and type are not compared with other ranks': one of its parts may
    have been lost there.
    """
    if len(run) < 2 or (run.incarnation[0] == run.incarnation[-1] and (np.diff(run.sequence) > 0).all()):
        return [run]
    run = _coalesced(_once(run))
    new_process = np.diff(run.incarnation) != 0
    fallen = np.diff(run.sequence) < -REORDERED
    parts = []
    for first, stop in _spans(np.flatnonzero(new_process | fallen) + 1, len(run)):
        part = run.take(slice(first, stop))
        parts += [part.take(slice(*span)) for span in _spans(_repeats(part.sequence), len(part))]
    return [part.take(np.argsort(part.sequence, kind="stable")) for part in parts[-MAX_GENERATIONS:]]


def _spans(starts: Array, count: int) -> list[tuple[int, int]]:
    firsts = [0, *starts.tolist()][-MAX_GENERATIONS:]
    return list(zip(firsts, [*firsts[1:], count], strict=True))


def _once(run: Records) -> Records:
    keys = (run.bytes, run.op, run.sequence, run.times_ns, run.incarnation)
    order = np.lexsort((np.nan_to_num(run.duration_s, nan=-1.0), *keys))
    same = np.ones(len(run) - 1, bool)
    for key in keys:
        ordered = np.nan_to_num(key[order], nan=-1.0)
        same &= ordered[1:] == ordered[:-1]
    return run.take(order[np.append(~same, True)])


def _coalesced(run: Records) -> Records:
    same = (np.diff(run.sequence) == 0) & (np.diff(run.incarnation) == 0)
    if not same.any():
        return run
    firsts = np.flatnonzero(np.append(True, ~same))
    one = run.take(firsts)
    one.bytes = np.add.reduceat(run.bytes, firsts)
    one.is_coalesced = np.diff(np.append(firsts, len(run))) > 1
    one.duration_s = np.fmax.reduceat(run.duration_s, firsts)
    return one


def _repeats(sequence: Array) -> Array:
    """Positions where a sequence comes that was there before, as often as never before."""
    order = np.argsort(sequence, kind="stable")
    ordered = sequence[order]
    firsts = np.append(True, ordered[1:] != ordered[:-1])
    place = np.arange(len(order))
    times_seen = np.empty(len(order), np.int64)
    times_seen[order] = place - np.maximum.accumulate(np.where(firsts, place, 0))
    most = np.maximum.accumulate(times_seen)
    return np.flatnonzero(np.diff(most) > 0) + 1
