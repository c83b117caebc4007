"""First schema: runs, streams, catalogues, tensors, series, batches, tiles, events."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("id", ID, nullable=False),
        sa.Column("identity", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("created_ns", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.UniqueConstraint("identity", name="uq_runs_identity"),
    )
    op.create_table(
        "streams",
        sa.Column("id", ID, nullable=False),
        sa.Column("run_id", ID, sa.ForeignKey("runs.id", name="fk_streams_run_id"), nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("incarnation", sa.Text, nullable=False),
        sa.Column("ordinal", sa.Integer, nullable=False),
        sa.Column("info", sa.LargeBinary, nullable=False),
        sa.Column("started_ns", sa.BigInteger, nullable=False),
        sa.Column("last_seen_ns", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False, server_default="open"),
        sa.Column("contiguous", sa.BigInteger, nullable=False, server_default="-1"),
        sa.Column("frontier", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("rewrites", sa.BigInteger, nullable=False, server_default="0"),
        *(sa.Column(name, sa.BigInteger) for name in ("first_step", "last_step")),
        sa.Column("least_bits", sa.Float(53)),
        sa.Column("least_step", sa.BigInteger),
        sa.Column("least_tensor", sa.Integer),
        sa.Column("bad_step", sa.BigInteger),
        sa.Column("bad_tensor", sa.Integer),
        sa.Column("bad_is_nan", sa.Integer),
        sa.Column("skipped_steps", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("loss_scale_first", sa.Float(53)),
        sa.Column("loss_scale_last", sa.Float(53)),
        sa.PrimaryKeyConstraint("id", name="pk_streams"),
        sa.UniqueConstraint("run_id", "rank", "incarnation", name="uq_streams_run_id"),
    )
    op.create_table(
        "catalogues",
        sa.Column("id", ID, nullable=False),
        sa.Column("run_id", ID, sa.ForeignKey("runs.id", name="fk_catalogues_run_id"), nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("ordinals", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_catalogues"),
        sa.UniqueConstraint("run_id", "digest", name="uq_catalogues_run_id"),
    )
    op.create_table(
        "tensors",
        sa.Column("run_id", ID, sa.ForeignKey("runs.id", name="fk_tensors_run_id"), nullable=False),
        sa.Column("ordinal", sa.Integer, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("identity", "fqn", "kind")),
        sa.Column("tensor_index", sa.Integer, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("dtype", "shape")),
        sa.Column("call_index", sa.Integer, nullable=False),
        sa.Column("module", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "ordinal", name="pk_tensors"),
        sa.UniqueConstraint("run_id", "identity", name="uq_tensors_run_id"),
    )
    op.create_table(
        "series",
        sa.Column("run_id", ID, sa.ForeignKey("runs.id", name="fk_series_run_id"), nullable=False),
        sa.Column("ordinal", sa.Integer, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("identity", "name")),
        sa.PrimaryKeyConstraint("run_id", "ordinal", name="pk_series"),
        sa.UniqueConstraint("run_id", "identity", name="uq_series_run_id"),
    )
    op.create_table(
        "batches",
        sa.Column("stream_id", ID, sa.ForeignKey("streams.id", name="fk_batches_stream_id"), nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("stream_id", "sequence", name="pk_batches"),
    )
    op.create_table(
        "tiles",
        sa.Column("stream_id", ID, sa.ForeignKey("streams.id", name="fk_tiles_stream_id"), nullable=False),
        sa.Column("part", sa.Text, nullable=False),
        sa.Column("level", sa.Integer, nullable=False),
        sa.Column("tile", sa.BigInteger, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("stream_id", "part", "level", "tile", name="pk_tiles"),
    )
    op.create_table(
        "events",
        sa.Column("id", ID, nullable=False),
        sa.Column("stream_id", ID, sa.ForeignKey("streams.id", name="fk_events_stream_id"), nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("time_ns", "step")),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("kind", "message")),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
    )
    op.create_index("ix_events_stream_id", "events", ["stream_id"])


def downgrade() -> None:
    for name in ("events", "tiles", "batches", "series", "tensors", "catalogues", "streams", "runs"):
        op.drop_table(name)
