"""Samples: rows keyed by time, such as a GPU's health, by run as tiles are."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = ["run_id", "source", "stream_id", "sample_key", "last_ns", "first_ns", "first_step", "last_step"]


def upgrade() -> None:
    op.create_table(
        "samples",
        sa.Column("run_id", ID, sa.ForeignKey("runs.id", name="fk_samples_run_id"), nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("stream_id", "sequence")),
        sa.Column("number", sa.Integer, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("source", "sample_key")),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("first_ns", "last_ns")),
        *(sa.Column(name, sa.BigInteger) for name in ("first_step", "last_step")),
        sa.Column("row_count", sa.Integer, nullable=False),
        sa.Column("joined", sa.Integer, nullable=False, server_default="0"),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "stream_id", "sequence", "number", name="pk_samples"),
        postgresql_partition_by="LIST (run_id)",
    )
    op.create_index("ix_samples_time", "samples", TIME)
    waiting = sa.text("joined = 0")
    op.create_index("ix_samples_waiting", "samples", TIME[:4], sqlite_where=waiting, postgresql_where=waiting)
    if op.get_bind().dialect.name == "postgresql":
        # A run whose rows are all gone has lost its other partitions, too.
        there = sa.text("SELECT id FROM runs WHERE identity NOT LIKE 'deleted:%'")
        for run in op.get_bind().execute(there).scalars().all():
            op.execute(f"CREATE TABLE samples_run_{run} PARTITION OF samples FOR VALUES IN ({run})")


def downgrade() -> None:
    op.drop_table("samples")
