"""`adjudge backup`: copy a SQLite database while processes use it."""

import sqlite3
from pathlib import Path
from typing import Annotated

import typer

from adjudge_services.cli.output import exit_with_error, out
from adjudge_services.settings import Settings
from rubric_store.backup import copy_sqlite


def backup(file: Annotated[Path, typer.Argument(help="The copy; there must be no file of that name yet.")]) -> None:
    """Copy the SQLite database into a file, as it is at one moment. Services may go on meanwhile.

    For PostgreSQL use pg_dump: see docs/backup.md, which also says what else to keep.
    """
    try:
        size = copy_sqlite(Settings().store_url, file)
    except (ValueError, OSError, sqlite3.Error) as error:
        exit_with_error(f"no backup was made: {error}")
    out.print(f"wrote {file}, {size} bytes", highlight=False, soft_wrap=True)
