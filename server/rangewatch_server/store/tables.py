"""The schema, for SQLite and PostgreSQL alike. Migrations under `migrations/` make it; a test holds the two equal.

Times are integer nanoseconds since the epoch. Names are text as received; `identity` columns are their digests,
because a 4 KiB name does not fit a PostgreSQL index.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_name)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}
metadata = MetaData(naming_convention=NAMES)
# Who may do what, and who did: in PostgreSQL beside the others; with SQLite in a file of its own (store/tokens.py).
access = MetaData(naming_convention=NAMES)
# Findings, deliveries and silences: beside the runs, but no part of a backup, which is found again.
alerting = MetaData(naming_convention=NAMES)

# SQLite numbers rows by itself only for a column declared exactly INTEGER.
_Id = BigInteger().with_variant(Integer(), "sqlite")

runs = Table(
    "runs", metadata,
    Column("id", _Id, primary_key=True),
    Column("identity", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    # Set when somebody deletes the run: nobody sees it from then on, and its rows go a few at a time.
    Column("deleted_ns", BigInteger),
    # What people say of it: store/run_metadata.py. `tags` is a JSON list of text.
    Column("title", Text, nullable=False, server_default=""),
    Column("tags", Text, nullable=False, server_default="[]"),
    Column("note", Text, nullable=False, server_default=""),
    Column("archived_ns", BigInteger),
)  # fmt: skip

# One process of one rank, from attach to its end. `contiguous`, `skipped` and `frontier` are all that ingest must
# remember: every sequence up to `contiguous` is stored, but for those in `skipped`, which were given up and never came
# (JSON, ranges); every step below `frontier` is in tiles.
# Rank -1 is all ranks of the run merged: its tiles hold every row that is shown of the steps below its frontier.
streams = Table(
    "streams", metadata,
    Column("id", _Id, primary_key=True),
    Column("run_id", ForeignKey("runs.id"), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("incarnation", Text, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("info", LargeBinary, nullable=False),
    Column("started_ns", BigInteger, nullable=False),
    Column("last_seen_ns", BigInteger, nullable=False),
    Column("state", Text, nullable=False, server_default="open"),
    Column("contiguous", BigInteger, nullable=False, server_default="-1"),
    Column("skipped", Text, nullable=False, server_default="[]"),
    Column("frontier", BigInteger, nullable=False, server_default="0"),
    # Counts tiles made again for late rows: readers cache tiles under it.
    Column("rewrites", BigInteger, nullable=False, server_default="0"),
    # Counts changes of this row: a server whose memory of it is older reads it again.
    Column("version", BigInteger, nullable=False, server_default="0"),
    # Retention: below `thin_step` the tiles under `thin_level` are kept around events only.
    Column("thin_step", BigInteger, nullable=False, server_default="0"),
    Column("thin_level", Integer, nullable=False, server_default="0"),
    Column("first_step", BigInteger),
    Column("last_step", BigInteger),
    Column("least_bits", Float(53)),
    Column("least_step", BigInteger),
    Column("least_tensor", Integer),
    Column("bad_step", BigInteger),
    Column("bad_tensor", Integer),
    Column("bad_is_nan", Integer),
    Column("skipped_steps", BigInteger, nullable=False, server_default="0"),
    Column("loss_scale_first", Float(53)),
    Column("loss_scale_last", Float(53)),
    UniqueConstraint("run_id", "rank", "incarnation"),
)  # fmt: skip

catalogues = Table(
    "catalogues", metadata,
    Column("id", _Id, primary_key=True),
    Column("run_id", ForeignKey("runs.id"), nullable=False),
    Column("digest", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("ordinals", LargeBinary, nullable=False),
    UniqueConstraint("run_id", "digest"),
)  # fmt: skip

tensors = Table(
    "tensors", metadata,
    Column("run_id", ForeignKey("runs.id"), primary_key=True),
    Column("ordinal", Integer, primary_key=True),
    Column("identity", Text, nullable=False),
    Column("fqn", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("tensor_index", Integer, nullable=False),
    Column("dtype", Text, nullable=False),
    Column("shape", Text, nullable=False),
    Column("call_index", Integer, nullable=False),
    Column("module", Text, nullable=False),
    UniqueConstraint("run_id", "identity"),
)  # fmt: skip

series = Table(
    "series", metadata,
    Column("run_id", ForeignKey("runs.id"), primary_key=True),
    Column("ordinal", Integer, primary_key=True),
    Column("identity", Text, nullable=False),
    Column("name", Text, nullable=False),
    UniqueConstraint("run_id", "identity"),
)  # fmt: skip

# Bodies as received, until every step of theirs is in tiles. In PostgreSQL one partition a run, as tiles and samples.
batches = Table(
    "batches", metadata,
    Column("run_id", ForeignKey("runs.id"), primary_key=True),
    Column("stream_id", BigInteger, primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("body", LargeBinary, nullable=False),
    postgresql_partition_by="LIST (run_id)",
)  # fmt: skip

# The pyramid. A tile of level k holds 64 columns of 8**k steps; it is written when its last step has passed.
tiles = Table(
    "tiles", metadata,
    Column("run_id", ForeignKey("runs.id"), primary_key=True),
    Column("stream_id", BigInteger, primary_key=True),
    Column("part", Text, primary_key=True),
    Column("level", Integer, primary_key=True),
    Column("tile", BigInteger, primary_key=True),
    Column("payload", LargeBinary, nullable=False),
    postgresql_partition_by="LIST (run_id)",
)  # fmt: skip

# Rows keyed by time: a GPU's health, a host's, a rank's collectives. `payload` holds them (store/samples.py), the
# other columns say what is in it. Of one batch or, joined later, of many: then under the number of the first.
samples = Table(
    "samples", metadata,
    Column("run_id", ForeignKey("runs.id"), primary_key=True),
    Column("stream_id", BigInteger, primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("source", Text, nullable=False),
    Column("sample_key", Text, nullable=False),
    Column("first_ns", BigInteger, nullable=False),
    Column("last_ns", BigInteger, nullable=False),
    # Of the column "step", where there is one.
    Column("first_step", BigInteger),
    Column("last_step", BigInteger),
    Column("row_count", Integer, nullable=False),
    # 0 while it waits to be joined with its neighbours in time.
    Column("joined", Integer, nullable=False, server_default="0"),
    Column("payload", LargeBinary, nullable=False),
    # All that a reader asks for, so that payloads of other times are not touched.
    Index(
        "ix_samples_time", "run_id", "source", "stream_id", "sample_key", "last_ns", "first_ns", "first_step",
        "last_step",
    ),
    Index(
        "ix_samples_waiting", "run_id", "source", "stream_id", "sample_key",
        sqlite_where=text("joined = 0"), postgresql_where=text("joined = 0"),
    ),
    postgresql_partition_by="LIST (run_id)",
)  # fmt: skip

PARTITIONED = (batches, tiles, samples)

events = Table(
    "events", metadata,
    Column("id", _Id, primary_key=True),
    Column("stream_id", ForeignKey("streams.id"), nullable=False),
    Column("time_ns", BigInteger, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Index("ix_events_stream_id_kind", "stream_id", "kind"),
)  # fmt: skip

# What somebody asked of the agents of a run. `body` is what they are sent, as JSON; `ranks` is JSON, null for all.
commands = Table(
    "commands", metadata,
    Column("id", _Id, primary_key=True),
    Column("run_id", ForeignKey("runs.id"), nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("ranks", LargeBinary, nullable=False),
    # How many ranks the run was said to have then: those still to come get a command that is for all.
    Column("world_size", Integer, nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    Column("expires_ns", BigInteger, nullable=False),
    Column("withdrawn_ns", BigInteger),
    Index(None, "run_id"),
)  # fmt: skip

# What each rank made of a command. It is for one incarnation only: `stream_id`.
command_ranks = Table(
    "command_ranks", metadata,
    Column("command_id", ForeignKey("commands.id"), primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("stream_id", ForeignKey("streams.id"), nullable=False),
    Column("state", Text, nullable=False, server_default="pending"),
    Column("first_step", BigInteger),
    Column("last_step", BigInteger),
    Column("reason", Text, nullable=False, server_default=""),
    Column("changed_ns", BigInteger, nullable=False),
    Index(None, "stream_id"),
)  # fmt: skip

# Never a token itself: `digest` is its SHA-256. `roles` are words with a space between.
tokens = Table(
    "tokens", access,
    Column("id", _Id, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("digest", Text, nullable=False, unique=True),
    Column("roles", Text, nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    Column("revoked_ns", BigInteger),
)  # fmt: skip

# A browser that has logged in; `digest` is of its cookie. Of a token above, or (`token_id` null) of the server's own
# --token, which `proof` then is bound to: a MAC of that token under the cookie, of which only the digest is stored.
sessions = Table(
    "sessions", access,
    Column("digest", Text, primary_key=True),
    Column("token_id", ForeignKey("tokens.id")),
    Column("proof", Text, nullable=False, server_default=""),
    Column("created_ns", BigInteger, nullable=False),
    Column("expires_ns", BigInteger, nullable=False),
)  # fmt: skip

# What was done with the role admin: written before it is done, and its end after it. `who` is the token's name.
audit = Table(
    "audit", access,
    Column("id", _Id, primary_key=True),
    Column("time_ns", BigInteger, nullable=False),
    Column("who", Text, nullable=False),
    Column("client", Text, nullable=False),
    Column("what", Text, nullable=False),
    Column("detail", Text, nullable=False, server_default=""),
    # The answer's status; null when it was broken off, or goes on.
    Column("status", Integer),
)  # fmt: skip

# A finding that stands, or stood. `identity` says which one it is (alerts/evaluator.py); `finding` is JSON, as it was
# when last seen. While it is open there is one row of an identity, whichever server found it.
alerts = Table(
    "alerts", alerting,
    Column("id", _Id, primary_key=True),
    Column("run_id", BigInteger, nullable=False),
    Column("identity", Text, nullable=False),
    Column("rule", Text, nullable=False),
    Column("severity", Text, nullable=False),
    Column("step", BigInteger),
    Column("finding", LargeBinary, nullable=False),
    Column("opened_ns", BigInteger, nullable=False),
    Column("resolved_ns", BigInteger),
    Column("resolved_step", BigInteger),
    Column("acknowledged_ns", BigInteger),
    Column("acknowledged_by", Text, nullable=False, server_default=""),
    Index("ix_alerts_run_id", "run_id", "id"),
    Index(
        "uq_alerts_open", "run_id", "identity", unique=True,
        sqlite_where=text("resolved_ns IS NULL"), postgresql_where=text("resolved_ns IS NULL"),
    ),
)  # fmt: skip

# Silences: of one run or all (null), of one rule or all (""), of modules by a pattern ("": all).
silences = Table(
    "silences", alerting,
    Column("id", _Id, primary_key=True),
    Column("run_id", BigInteger),
    Column("rule", Text, nullable=False, server_default=""),
    Column("tensor", Text, nullable=False, server_default=""),
    Column("reason", Text, nullable=False, server_default=""),
    Column("created_by", Text, nullable=False, server_default=""),
    Column("created_ns", BigInteger, nullable=False),
    Column("until_ns", BigInteger, nullable=False),
)  # fmt: skip

# Thresholds of one run that somebody set in the page: JSON, rule -> name -> value.
thresholds = Table(
    "thresholds", alerting,
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    Column("given", LargeBinary, nullable=False),
    Column("changed_ns", BigInteger, nullable=False),
)  # fmt: skip

# Runs that the rules were applied to when nobody spoke for them any more. `versions`: those of its streams then, added
# up, which are others once it has news.
examined = Table(
    "examined", alerting,
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    Column("versions", BigInteger, nullable=False),
)  # fmt: skip

# What is to be sent, or was: one row an alert, a target and what happened (`opened` or `resolved`).
deliveries = Table(
    "deliveries", alerting,
    Column("id", _Id, primary_key=True),
    Column("alert_id", BigInteger, nullable=False),
    Column("target", Text, nullable=False),
    Column("what", Text, nullable=False),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("next_ns", BigInteger, nullable=False),
    # Sent, or given up: then `error` says why.
    Column("done_ns", BigInteger),
    Column("error", Text, nullable=False, server_default=""),
    Index("ix_deliveries_alert_id", "alert_id"),
    Index(
        "ix_deliveries_waiting", "next_ns",
        sqlite_where=text("done_ns IS NULL"), postgresql_where=text("done_ns IS NULL"),
    ),
)  # fmt: skip
