"""Sequences of a process that were given up and never came: one that comes after all is no duplicate. And to which runs
the rules were applied when they had ended.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("streams", sa.Column("skipped", sa.Text, nullable=False, server_default="[]"))
    op.create_table(
        "examined",
        sa.Column("run_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("versions", sa.BigInteger, nullable=False),
    )
    # The older version applied the rules to all of these: alerts of new rules for them would be sent for old runs.
    op.execute(
        "INSERT INTO examined (run_id, versions) "
        "SELECT run_id, SUM(version) FROM streams WHERE rank >= 0 GROUP BY run_id"
    )


def downgrade() -> None:
    with op.batch_alter_table("streams") as streams:
        streams.drop_column("skipped")
    op.drop_table("examined")
