"""A newer release than this one: it adds migrations in a separate folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from alembic.config import Config
from sqlalchemy import create_engine, text

from rubric_store import migrations
from rubric_store.migrations import schema_status, versions
from rubric_store.migrations.schema_status import all_tables
from tests.rubric_store.schema_dump import sync_url

_REVISION = '''"""Something of a newer release."""

import sqlalchemy as sa
from alembic import op

revision = {revision!r}
down_revision = {before!r}
loses = "something of a newer release"
{declared}

def upgrade() -> None:
    {upgrade}


def downgrade() -> None:
    {downgrade}
'''

TO_EVERY_TABLE = f"""for name in {sorted(set(all_tables().tables) - {"schema_generation"})!r}:
        op.add_column(name, sa.Column("later_note", sa.Text))
        op.add_column(name, sa.Column("later_count", sa.Integer, nullable=False, server_default="7"))
    op.create_table("later", sa.Column("id", sa.Integer, primary_key=True))
    op.create_index("ix_later_note", "ledger_requests", ["later_note"])"""
"""The upgrade of a release that only adds to every existing table."""

FROM_EVERY_TABLE = f"""op.drop_index("ix_later_note", "ledger_requests")
    op.drop_table("later")
    for name in {sorted(set(all_tables().tables) - {"schema_generation"})!r}:
        op.drop_column(name, "later_count")
        op.drop_column(name, "later_note")"""

NEXT = "next1"


def release(folder: Path, *upgrades: str, downgrade: str = "pass", works_from: str | None = None) -> Path:
    """A folder with a newer release's migrations, `next1` and so on; the last declares `works_from`."""
    folder.mkdir(exist_ok=True)
    before = migrations.head()
    for number, upgrade in enumerate(upgrades, start=1):
        declares = works_from is not None and number == len(upgrades)
        text = _REVISION.format(
            revision=f"next{number}",
            before=before,
            declared=f"works_from = {works_from!r}\n" if declares else "",
            upgrade=upgrade,
            downgrade=downgrade,
        )
        (folder / f"next{number}.py").write_text(text)
        before = f"next{number}"
    return folder


@contextmanager
def running(folder: Path) -> Iterator[None]:
    """Make this process run the newer release during the block."""
    ours = schema_status.script_config

    def theirs() -> Config:
        config = ours()
        config.set_main_option("path_separator", "os")
        config.set_main_option("version_locations", os.pathsep.join([*versions.__path__, str(folder)]))
        return config

    with patch.object(schema_status, "script_config", theirs), patch.object(migrations, "script_config", theirs):
        yield


def set_revision(url: str, revision: str) -> None:
    """Set the revision of a database without changing its schema."""
    engine = create_engine(sync_url(url))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
    engine.dispose()
