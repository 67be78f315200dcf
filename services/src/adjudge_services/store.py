"""The database of a process or a command: opened, migrated or refused. It knows neither the API nor judges."""

import asyncio
import getpass
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from adjudge_services.settings import Settings
from rubric_store import SQLOperations, migrations
from rubric_store.database import SQLITE, read_url, unwritable_files
from rubric_store.migrations import SchemaStatus

log = logging.getLogger("adjudge")

Result = TypeVar("Result")


class StartError(Exception):
    """The process cannot start; the message says why and what to do.

    Usually the database cannot be used, or its schema needs `adjudge migrate`.
    """

    code = "start"


def command_line_user() -> str:
    """The actor in the audit log for changes made by a command."""
    try:
        return f"command line, {getpass.getuser()}"
    except (KeyError, OSError):  # the user id has no name
        return "command line"


def describe_schema_status(found: SchemaStatus) -> str:
    """The schema status in one sentence, with what to do about it."""
    if found.state == "current":
        return f"the database is at revision {found.revision}, which is this version's"
    if found.state == "behind":
        state = f"it is at revision {found.revision}" if found.revision else "it is empty"
        return f"the database schema is out of date: {state}, and this version needs {found.head}; run: adjudge migrate"
    if found.state == "ahead":
        return (
            f"the database is at revision {found.revision}, from a newer version; this version (revision {found.head}) "
            "works on it"
        )
    needed = f" (it needs revision {found.works_from} or later)" if found.works_from else ""
    return (
        f"the database is at revision {found.revision}, from a newer version, and this version (revision {found.head}) "
        f"does not work on it{needed}; install the newer version again, or downgrade the schema with it: "
        f"adjudge migrate down {found.head}"
    )


async def prepare_store(settings: Settings, *, writes: bool = False) -> None:
    """Migrate a SQLite file; check that this version works on the schema of a PostgreSQL database.

    Raises:
        StartError: this version does not work on the schema, the database cannot be reached, or the process `writes`
            and cannot write the SQLite file or a file beside it.
    """
    url = settings.store_url
    try:
        if url.startswith("sqlite"):
            settings.data_dir.mkdir(parents=True, exist_ok=True)
        if writes and (unwritable := unwritable_files(read_url(url))):
            raise StartError(
                f"the SQLite database cannot be written: this process cannot write {', '.join(map(str, unwritable))}. "
                "SQLite writes the database and the files -wal and -shm beside it. Correct their owner, mode or "
                "attributes (ls -l, lsattr) or how the file system is mounted, and start again"
            )
        if await asyncio.to_thread(migrations.is_current, url):
            return
        found = await asyncio.to_thread(migrations.read_status, url)
        if found.state == "behind" and url.startswith("sqlite"):
            await asyncio.to_thread(migrations.upgrade, url)
            return
    except (OSError, SQLAlchemyError) as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise StartError(f"the rubric store cannot be opened: {reason}. Check ADJUDGE_DATABASE_URL") from error
    if found.state == "ahead":
        log.warning("%s", describe_schema_status(found))
    elif not found.usable:
        raise StartError(describe_schema_status(found))


class _Store(Protocol):
    async def close(self) -> None: ...


StoreT = TypeVar("StoreT", bound=_Store)


@asynccontextmanager
async def open_store(make: Callable[[str], StoreT], settings: Settings | None = None) -> AsyncIterator[StoreT]:
    """Open a store of a command's database, which `make` builds from its URL; raises what `prepare_store` raises."""
    settings = settings or Settings()
    await prepare_store(settings)
    store = make(settings.store_url)
    try:
        yield store
    finally:
        await store.close()


def use_store(make: Callable[[str], StoreT], work: Callable[[StoreT], Coroutine[Any, Any, Result]]) -> Result:
    """Run `work` on a store of a command's database, and return its result; raises what `prepare_store` raises."""

    async def run() -> Result:
        async with open_store(make) as store:
            return await work(store)

    return asyncio.run(run())


def operation_store(settings: Settings) -> SQLOperations:
    """Open the store of operations; the caller closes it."""
    return SQLOperations(settings.store_url, keep_days=settings.operation_days)


@asynccontextmanager
async def command_store(database: Path) -> AsyncIterator[SQLOperations]:
    """Open the store of a command's own operations: a SQLite file, on which no service works.

    Raises:
        ValueError: the file is not a database that this release can use.
    """
    url = f"{SQLITE}:///{database}"
    try:
        await asyncio.to_thread(migrations.upgrade, url)
    except (migrations.UnknownRevisionError, SQLAlchemyError) as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise ValueError(f"{database} cannot be used: {reason}; use another folder") from error
    store = SQLOperations(url)
    try:
        yield store
    finally:
        await store.close()
