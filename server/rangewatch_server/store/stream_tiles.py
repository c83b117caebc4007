"""The tiles of one stream inside a transaction of the writer."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, insert, select

from rangewatch_server.pyramid import Block
from rangewatch_server.store import tables, tiles

# Built once: making a statement costs as much as running it.
_tile = tables.tiles.c
_TILE_KEY = ("run_id", "stream_id", "part", "level", "tile")
_THIS_TILE = and_(*(_tile[name] == bindparam(f"b_{name}") for name in _TILE_KEY))
INSERT_TILE = insert(tables.tiles).values({name: bindparam(f"b_{name}") for name in _TILE_KEY})
SELECT_TILE = select(_tile.payload).where(_THIS_TILE)
SELECT_THINNED = select(tables.streams.c.thin_step, tables.streams.c.thin_level).where(
    tables.streams.c.id == bindparam("b_id")
)
DELETE_TILE = delete(tables.tiles).where(_THIS_TILE)


class StreamTiles:
    """Tiles of one stream, through the transaction's connection; new ones wait in `rows` to be inserted together."""

    def __init__(self, connection: Connection, run_id: int, stream_id: int, rows: list[dict[str, Any]]) -> None:
        self.connection = connection
        self.run_id = run_id
        self.stream_id = stream_id
        self.rows = rows
        self._thinned: tuple[int, int] | None = None

    def get(self, part: str, level: int, tile: int) -> Block | None:
        """A stored tile, or one that waits; None when there is none."""
        self.flush()
        payload = self.connection.execute(SELECT_TILE, self._key(part, level, tile)).scalar()
        if payload is None:
            return None
        rows, columns = tiles.decode(payload)
        return Block(level, tile * tiles.WIDTH, rows, columns)

    def put(self, part: str, tile: int, block: Block, replace: bool) -> None:
        """Store a tile; `replace`: it may be there already."""
        key = self._key(part, block.level, tile)
        if replace:
            self.flush()
            self.connection.execute(DELETE_TILE, key)
        self.rows.append({**key, "payload": tiles.encode(block.rows, block.columns)})

    def thin_level(self, tile: int) -> int:
        """Under which level retention has taken the tiles of a level 0 tile's steps; 0 for none."""
        if self._thinned is None:
            row = self.connection.execute(SELECT_THINNED, {"b_id": self.stream_id}).first()
            self._thinned = (0, 0) if row is None else (row.thin_step, row.thin_level)
        step, level = self._thinned
        return level if tile * tiles.WIDTH < step else 0

    def flush(self) -> None:
        """Insert what waits."""
        if self.rows:
            self.connection.execute(INSERT_TILE, self.rows)
            self.rows.clear()

    def _key(self, part: str, level: int, tile: int) -> dict[str, Any]:
        place = {"b_part": part, "b_level": level, "b_tile": tile}
        return {"b_run_id": self.run_id, "b_stream_id": self.stream_id, **place}
