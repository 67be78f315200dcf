"""A copy of a SQLite database as it was at one moment, while others go on writing. Knows no table.

PostgreSQL has tools of its own for this.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from rubric_store.database import SQLITE, read_url


def copy_sqlite(url: str, to: Path) -> int:
    """Write a copy to a file that is not there yet, for its owner only, whole or not at all; its size in bytes. Blocks.

    Raises:
        DatabaseURLError: the store cannot use this URL.
        ValueError: it names no SQLite file, or one that is not there.
        FileExistsError: there is a file of that name.
        sqlite3.Error, OSError: it could not be read or written.
    """
    parsed = read_url(url)
    if parsed.drivername != SQLITE or parsed.database is None:
        raise ValueError("only a SQLite file is copied like this; PostgreSQL has pg_dump, see docs/backup.md")
    if not Path(parsed.database).is_file():
        raise ValueError(f"there is no database {parsed.database} yet")
    if to.exists():
        raise FileExistsError(f"{to} is there already; name a new file")
    begun = to.with_name(f"{to.name}.{os.getpid()}.part")
    try:
        begun.touch(mode=0o600)
        with closing(sqlite3.connect(f"{Path(parsed.database).absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.execute("VACUUM INTO ?", (str(begun),))
        with begun.open("rb") as written:
            os.fsync(written.fileno())
        to.hardlink_to(begun)
    finally:
        begun.unlink(missing_ok=True)
    return to.stat().st_size
