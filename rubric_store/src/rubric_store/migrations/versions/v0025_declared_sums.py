"""The sums of rewards under the rubric's own weights, by step of a run."""

from sqlalchemy import BigInteger, Double

from rubric_store.migrations.changes import add_columns, drop_columns
from rubric_store.schema import required

revision = "0025"
down_revision = "0024"

loses = "charts of rewards under the rubric's own weights; the rewards of the responses stay"


def upgrade() -> None:
    """Add the sums; steps that were judged before have none."""
    add_columns(["ledger_run_steps"], lambda: required(BigInteger, "declared_rewards", default="0"))
    add_columns(["ledger_run_steps"], lambda: required(Double, "declared_reward_sum", default="0"))


def downgrade() -> None:
    """Drop them."""
    drop_columns(["ledger_run_steps"], "declared_reward_sum", "declared_rewards")
