"""What people say of a run: a title that is shown for its name, tags, a note, and whether it is archived.

The name stays what agents attach as: were it changed, the run's own ranks would begin another one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from sqlalchemy import Connection, select, update

from rangewatch_server.store import tables

ANY_TEXT = r"^[^\x00]*\Z"  # PostgreSQL stores no NUL
Tag = Annotated[str, msgspec.Meta(min_length=1, max_length=60, pattern=ANY_TEXT)]
Tags = Annotated[tuple[Tag, ...], msgspec.Meta(max_length=20)]
Title = Annotated[str, msgspec.Meta(max_length=200, pattern=ANY_TEXT)]
Note = Annotated[str, msgspec.Meta(max_length=10_000, pattern=ANY_TEXT)]

_run = tables.runs.c
COLUMNS = (_run.title, _run.tags, _run.note, _run.archived_ns)


class About(msgspec.Struct, frozen=True):
    """As it is stored. `title` "": the name is shown. `archived_ns`: since when; None where it is not."""

    title: Title = ""
    tags: Tags = ()
    note: Note = ""
    archived_ns: int | None = None


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be otherwise; what is left out stays."""

    title: Title | msgspec.UnsetType = msgspec.UNSET
    tags: Tags | msgspec.UnsetType = msgspec.UNSET
    note: Note | msgspec.UnsetType = msgspec.UNSET
    archived: bool | msgspec.UnsetType = msgspec.UNSET


def of_row(row: Any) -> About:
    """From a row of `runs`."""
    return of_columns(row.title, row.tags, row.note, row.archived_ns)


def of_columns(title: str, tags: str, note: str, archived_ns: int | None) -> About:
    """Raises `msgspec.MsgspecError` for what `change` would not store."""
    decoded = msgspec.json.decode(tags, type=Tags)
    return msgspec.convert({"title": title, "tags": decoded, "note": note, "archived_ns": archived_ns}, About)


def columns_of(about: About) -> dict[str, Any]:
    """The columns of `runs` that hold it."""
    return msgspec.structs.asdict(about) | {"tags": msgspec.json.encode(about.tags).decode()}


def shown(about: About) -> dict[str, Any]:
    """As the list of runs has it."""
    return {"title": about.title, "tags": about.tags, "archived": about.archived_ns is not None}


def of_runs(connection: Connection, run_ids: Sequence[int]) -> dict[int, About]:
    """Of each that is there."""
    rows = connection.execute(select(_run.id, *COLUMNS).where(_run.id.in_(run_ids)))
    return {row.id: of_row(row) for row in rows}


def change(connection: Connection, run_id: int, wanted: Change) -> About | None:
    """The run as it is now; None when there is none. Tags are kept once each, in the order given."""
    here = (_run.id == run_id) & _run.deleted_ns.is_(None)
    row = connection.execute(select(*COLUMNS).where(here).with_for_update()).first()  # another server may, at once
    if row is None:
        return None
    given = {name: value for name, value in msgspec.structs.asdict(wanted).items() if value is not msgspec.UNSET}
    old = of_row(row)
    if "archived" in given:
        archived_ns = old.archived_ns or time.time_ns()
        given["archived_ns"] = archived_ns if given.pop("archived") else None
    if "tags" in given:
        given["tags"] = tuple(dict.fromkeys(given["tags"]))
    new = msgspec.structs.replace(old, **given)
    connection.execute(update(tables.runs).where(here).values(columns_of(new)))
    return new


def matching(connection: Connection, q: str, archived: bool | None) -> list[Any]:
    """(id, name) rows of the runs whose name, title or one of whose tags holds `q` in any case, newest first.

    `archived` None: whether archived or not. Looked for here, as SQLite knows the case of ASCII letters only.
    """
    shown = select(_run.id, _run.name, _run.title, _run.tags).where(_run.deleted_ns.is_(None))
    if archived is not None:
        shown = shown.where(_run.archived_ns.is_not(None) if archived else _run.archived_ns.is_(None))
    wanted = q.casefold()
    return [row for row in connection.execute(shown.order_by(_run.id.desc())) if _has(row, wanted)]


def _has(row: Any, wanted: str) -> bool:
    if not wanted or wanted in row.name.casefold() or wanted in row.title.casefold():
        return True
    return any(wanted in tag.casefold() for tag in msgspec.json.decode(row.tags, type=tuple[str, ...]))
