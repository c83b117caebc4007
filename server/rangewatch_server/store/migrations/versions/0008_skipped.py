"""Sequences of a process that were given up and never came: one that comes after all is no duplicate."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("streams", sa.Column("skipped", sa.Text, nullable=False, server_default="[]"))


def downgrade() -> None:
    with op.batch_alter_table("streams") as streams:
        streams.drop_column("skipped")
