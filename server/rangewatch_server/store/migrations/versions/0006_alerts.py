"""Alerts, what silences them, thresholds of a run, and what was sent."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "alerts",
        sa.Column("id", _Id, nullable=False),
        sa.Column("run_id", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("identity", "rule", "severity")),
        sa.Column("step", sa.BigInteger),
        sa.Column("finding", sa.LargeBinary, nullable=False),
        sa.Column("opened_ns", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.BigInteger) for name in ("resolved_ns", "resolved_step", "acknowledged_ns")),
        sa.Column("acknowledged_by", sa.Text, nullable=False, server_default=""),
        sa.PrimaryKeyConstraint("id", name="pk_alerts"),
    )
    op.create_index("ix_alerts_run_id", "alerts", ["run_id", "id"])
    is_open = sa.text("resolved_ns IS NULL")
    op.create_index(
        "uq_alerts_open", "alerts", ["run_id", "identity"], unique=True, sqlite_where=is_open, postgresql_where=is_open
    )
    op.create_table(
        "silences",
        sa.Column("id", _Id, nullable=False),
        sa.Column("run_id", sa.BigInteger),
        *(
            sa.Column(name, sa.Text, nullable=False, server_default="")
            for name in ("rule", "tensor", "reason", "created_by")
        ),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("created_ns", "until_ns")),
        sa.PrimaryKeyConstraint("id", name="pk_silences"),
    )
    op.create_table(
        "thresholds",
        sa.Column("run_id", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("given", sa.LargeBinary, nullable=False),
        sa.Column("changed_ns", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_thresholds"),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", _Id, nullable=False),
        sa.Column("alert_id", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("target", "what")),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("next_ns", sa.BigInteger, nullable=False),
        sa.Column("done_ns", sa.BigInteger),
        sa.Column("error", sa.Text, nullable=False, server_default=""),
        sa.PrimaryKeyConstraint("id", name="pk_deliveries"),
    )
    op.create_index("ix_deliveries_alert_id", "deliveries", ["alert_id"])
    waits = sa.text("done_ns IS NULL")
    op.create_index("ix_deliveries_waiting", "deliveries", ["next_ns"], sqlite_where=waits, postgresql_where=waits)


def downgrade() -> None:
    for table in ("deliveries", "thresholds", "silences", "alerts"):
        op.drop_table(table)
