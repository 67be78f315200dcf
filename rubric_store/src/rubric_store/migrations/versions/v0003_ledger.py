"""The ledger: texts, verdicts and re-judgements by digest; requests, responses and uses by run.

PostgreSQL keeps uses in 16 partitions by the hash of project and run, so that no process needs the right to make
tables; SQLite keeps them clustered by their key.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

loses = "everything that the ledger recorded"

_PARTITIONS = 16


def _keys() -> dict[str, sa.Column[str]]:
    key = sa.String(200).with_variant(sa.String(200, collation="C"), "postgresql")
    run = sa.String(256).with_variant(sa.String(256, collation="C"), "postgresql")
    return {"project_id": sa.Column("project_id", key, nullable=False), "run": sa.Column("run", run, nullable=False)}


def upgrade() -> None:
    """Create the six tables."""
    op.create_table(
        "ledger_texts",
        _keys()["project_id"],
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("project_id", "digest", name="pk_ledger_texts"),
        sqlite_with_rowid=False,
    )
    for name, also in (("ledger_verdicts", ()), ("ledger_rejudgements", ("request",))):
        op.create_table(
            name,
            _keys()["project_id"],
            sa.Column("digest", sa.LargeBinary(32), nullable=False),
            sa.Column("request", sa.LargeBinary(16), nullable=False),
            sa.Column("score", sa.Double, nullable=False),
            sa.Column("probability", sa.Double),
            sa.Column("menu_mass", sa.Double),
            sa.Column("step", sa.Integer),
            sa.Column("grade", sa.Double),
            sa.Column("rationale", sa.Text),
            sa.PrimaryKeyConstraint("project_id", "digest", *also, name=f"pk_{name}"),
            sqlite_with_rowid=False,
        )
    op.create_table(
        "ledger_requests",
        *_keys().values(),
        sa.Column("request", sa.LargeBinary(16), nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("step", sa.BigInteger),
        sa.Column("mode", sa.Text),
        sa.Column("protocol", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.Text),
        sa.Column("model", sa.Text),
        sa.Column("votes", sa.Integer, nullable=False),
        sa.Column("uses", sa.Integer, nullable=False),
        sa.Column("judge_calls", sa.Integer, nullable=False),
        sa.Column("tokens_computed", sa.BigInteger, nullable=False),
        sa.Column("tokens_reused", sa.BigInteger, nullable=False),
        sa.Column("tokens_written", sa.BigInteger, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "run", "request", name="pk_ledger_requests"),
    )
    op.create_index("ix_ledger_requests_created_at", "ledger_requests", ["project_id", "created_at"])
    op.create_table(
        "ledger_responses",
        *_keys().values(),
        sa.Column("request", sa.LargeBinary(16), nullable=False),
        sa.Column("place", sa.Integer, nullable=False),
        sa.Column("group_id", sa.Text, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("rubric", sa.LargeBinary(32)),
        sa.Column("prompt", sa.LargeBinary(32), nullable=False),
        sa.Column("response", sa.LargeBinary(32), nullable=False),
        sa.Column("grounding", sa.LargeBinary(32)),
        sa.Column("tokens", sa.BigInteger),
        sa.Column("stopped", sa.Boolean),
        sa.Column("format_ok", sa.Boolean, nullable=False),
        sa.Column("spans", sa.Text),
        sa.Column("reward", sa.Double),
        sa.Column("status", sa.Text),
        sa.PrimaryKeyConstraint("project_id", "run", "request", "place", name="pk_ledger_responses"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "ledger_uses",
        *_keys().values(),
        sa.Column("request", sa.LargeBinary(16), nullable=False),
        sa.Column("place", sa.Integer, nullable=False),
        sa.Column("slot", sa.Integer, nullable=False),
        sa.Column("vote", sa.Integer, nullable=False),
        sa.Column("criterion", sa.Text, nullable=False),
        sa.Column("method", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("failed", sa.Boolean, nullable=False),
        sa.Column("failure", sa.Text),
        sa.Column("detail", sa.Text),
        sa.Column("step", sa.Integer),
        sa.Column("cached", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("project_id", "run", "request", "place", "slot", "vote", name="pk_ledger_uses"),
        sqlite_with_rowid=False,
        postgresql_partition_by="HASH (project_id, run)",
    )
    if op.get_bind().dialect.name == "postgresql":
        for number in range(_PARTITIONS):
            op.execute(
                f"CREATE TABLE ledger_uses_{number} PARTITION OF ledger_uses "
                f"FOR VALUES WITH (MODULUS {_PARTITIONS}, REMAINDER {number})"
            )


def downgrade() -> None:
    """Drop them, and with them everything that was recorded."""
    for table in ("uses", "responses", "requests", "rejudgements", "verdicts", "texts"):
        op.drop_table(f"ledger_{table}")
