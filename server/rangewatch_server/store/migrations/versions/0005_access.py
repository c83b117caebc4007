"""Tokens, sessions and the audit, in PostgreSQL; with SQLite they are in a file of their own (store/tokens.py)."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        return
    op.create_table(
        "tokens",
        sa.Column("id", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("name", "digest", "roles")),
        sa.Column("created_ns", sa.BigInteger, nullable=False),
        sa.Column("revoked_ns", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("name", name="uq_tokens_name"),
        sa.UniqueConstraint("digest", name="uq_tokens_digest"),
    )
    op.create_table(
        "sessions",
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("token_id", sa.BigInteger, sa.ForeignKey("tokens.id", name="fk_sessions_token_id")),
        sa.Column("proof", sa.Text, nullable=False, server_default=""),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("created_ns", "expires_ns")),
        sa.PrimaryKeyConstraint("digest", name="pk_sessions"),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger, nullable=False),
        sa.Column("time_ns", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("who", "client", "what")),
        sa.Column("detail", sa.Text, nullable=False, server_default=""),
        sa.Column("status", sa.Integer),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )


def downgrade() -> None:
    if op.get_bind().dialect.name != "sqlite":
        for table in ("audit", "sessions", "tokens"):
            op.drop_table(table)
