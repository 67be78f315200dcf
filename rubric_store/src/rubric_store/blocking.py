"""A blocking connection for what is done once, outside any event loop: migrations, and looking through a database."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, create_engine

from rubric_store.database import SQLITE, WRITES, configure_engine, read_url
from rubric_store.patience import libpq_timeouts


@contextmanager
def blocking_connection(url: str, *, writes: bool) -> Iterator[Connection]:
    """A connection in one transaction, which is committed at the end of the block.

    Raises:
        DatabaseURLError: the store cannot use this URL.
    """
    parsed = read_url(url)
    file = parsed.drivername == SQLITE
    engine = create_engine(
        parsed.set(drivername="sqlite") if file else parsed,
        execution_options={WRITES: writes},
        connect_args={} if file else libpq_timeouts(parsed),
    )
    configure_engine(engine)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()
