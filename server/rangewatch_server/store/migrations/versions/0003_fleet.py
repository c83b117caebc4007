"""Tiles and batches by run (a partition each in PostgreSQL); what many servers, retention and merged ranks need."""

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
KEYS = {"batches": ("stream_id", "sequence"), "tiles": ("stream_id", "part", "level", "tile")}
STREAM_COLUMNS = {"version": 0, "thin_step": 0, "thin_level": 0}


def upgrade() -> None:
    op.add_column("runs", sa.Column("deleted_ns", sa.BigInteger))
    for name, default in STREAM_COLUMNS.items():
        kind = sa.Integer if name == "thin_level" else sa.BigInteger
        op.add_column("streams", sa.Column(name, kind, nullable=False, server_default=str(default)))
    op.drop_index("ix_events_stream_id", "events")
    op.create_index("ix_events_stream_id_kind", "events", ["stream_id", "kind"])
    _rebuild("batches", _batches, "run_id, stream_id, sequence, body", "s.run_id, o.stream_id, o.sequence, o.body")
    _rebuild(
        "tiles", _tiles, "run_id, stream_id, part, level, tile, payload",
        "s.run_id, o.stream_id, o.part, o.level, o.tile, o.payload",
    )  # fmt: skip


def downgrade() -> None:
    op.execute("DELETE FROM tiles WHERE stream_id IN (SELECT id FROM streams WHERE rank < 0)")
    op.execute("DELETE FROM streams WHERE rank < 0")
    for table, key in KEYS.items():
        value = ("body",) if table == "batches" else ("payload",)
        columns = ", ".join((*key, *value))
        _set_aside(table)
        op.create_table(
            table,
            sa.Column("stream_id", ID, sa.ForeignKey("streams.id", name=f"fk_{table}_stream_id"), nullable=False),
            *(_column(name) for name in (*key[1:], *value)),
            sa.PrimaryKeyConstraint(*key, name=f"pk_{table}"),
        )
        op.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM old_{table}")  # noqa: S608 - constants
        op.drop_table(f"old_{table}")
    op.drop_index("ix_events_stream_id_kind", "events")
    op.create_index("ix_events_stream_id", "events", ["stream_id"])
    with op.batch_alter_table("streams") as streams:
        for name in STREAM_COLUMNS:
            streams.drop_column(name)
    with op.batch_alter_table("runs") as runs:
        runs.drop_column("deleted_ns")


def _rebuild(table: str, create: Callable[[], None], columns: str, values: str) -> None:
    _set_aside(table)
    create()
    if op.get_bind().dialect.name == "postgresql":
        for run in op.get_bind().execute(sa.text("SELECT id FROM runs")).scalars().all():
            op.execute(f"CREATE TABLE {table}_run_{run} PARTITION OF {table} FOR VALUES IN ({run})")
    source = f"old_{table} o JOIN streams s ON s.id = o.stream_id"
    op.execute(f"INSERT INTO {table} ({columns}) SELECT {values} FROM {source}")  # noqa: S608 - constants
    op.drop_table(f"old_{table}")


def _set_aside(table: str) -> None:
    op.rename_table(table, f"old_{table}")
    if op.get_bind().dialect.name == "postgresql":  # the name of a constraint is the name of an index: one a schema
        op.execute(f"ALTER TABLE old_{table} RENAME CONSTRAINT pk_{table} TO pk_old_{table}")


def _column(name: str) -> sa.Column[Any]:
    types = {"part": sa.Text, "level": sa.Integer, "body": sa.LargeBinary, "payload": sa.LargeBinary}
    return sa.Column(name, types.get(name, sa.BigInteger), nullable=False)


def _batches() -> None:
    _create("batches", ("sequence", "body"))


def _tiles() -> None:
    _create("tiles", ("part", "level", "tile", "payload"))


def _create(table: str, names: tuple[str, ...]) -> None:
    op.create_table(
        table,
        sa.Column("run_id", ID, sa.ForeignKey("runs.id", name=f"fk_{table}_run_id"), nullable=False),
        sa.Column("stream_id", sa.BigInteger, nullable=False),
        *(_column(name) for name in names),
        sa.PrimaryKeyConstraint("run_id", *KEYS[table], name=f"pk_{table}"),
        postgresql_partition_by="LIST (run_id)",
    )
