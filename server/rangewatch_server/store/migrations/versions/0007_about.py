"""What people say of a run: a title, tags, a note, and that it is put away."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("title", sa.Text, nullable=False, server_default=""))
    op.add_column("runs", sa.Column("tags", sa.Text, nullable=False, server_default="[]"))
    op.add_column("runs", sa.Column("note", sa.Text, nullable=False, server_default=""))
    op.add_column("runs", sa.Column("archived_ns", sa.BigInteger))


def downgrade() -> None:
    with op.batch_alter_table("runs") as runs:
        for name in ("archived_ns", "note", "tags", "title"):
            runs.drop_column(name)
