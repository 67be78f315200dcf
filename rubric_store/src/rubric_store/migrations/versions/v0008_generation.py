"""What code works on a schema, told to code that does not know its revision."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

works_from = "0008"
"""Code before it starts on its own head only; from here on it asks the database."""

loses = "nothing; but code that does not know the schema can no longer tell that it works on it"


def upgrade() -> None:
    """Create the table; whoever runs migrations keeps its row."""
    op.create_table(
        "schema_generation",
        sa.Column("revision", sa.String(32), nullable=False),
        sa.Column("works_from", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("revision", name="pk_schema_generation"),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("schema_generation")
