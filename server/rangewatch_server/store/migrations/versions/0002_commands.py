"""Commands to agents: what was asked, and what each rank made of it."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "commands",
        sa.Column("id", ID, nullable=False),
        sa.Column("run_id", ID, sa.ForeignKey("runs.id", name="fk_commands_run_id"), nullable=False),
        *(sa.Column(name, sa.LargeBinary, nullable=False) for name in ("body", "ranks")),
        sa.Column("world_size", sa.Integer, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("created_ns", "expires_ns")),
        sa.Column("withdrawn_ns", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_commands"),
    )
    op.create_index("ix_commands_run_id", "commands", ["run_id"])
    op.create_table(
        "command_ranks",
        sa.Column("command_id", ID, sa.ForeignKey("commands.id", name="fk_command_ranks_command_id"), nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("stream_id", ID, sa.ForeignKey("streams.id", name="fk_command_ranks_stream_id"), nullable=False),
        sa.Column("state", sa.Text, nullable=False, server_default="pending"),
        *(sa.Column(name, sa.BigInteger) for name in ("first_step", "last_step")),
        sa.Column("reason", sa.Text, nullable=False, server_default=""),
        sa.Column("changed_ns", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("command_id", "rank", name="pk_command_ranks"),
    )
    op.create_index("ix_command_ranks_stream_id", "command_ranks", ["stream_id"])


def downgrade() -> None:
    op.drop_table("command_ranks")
    op.drop_table("commands")
