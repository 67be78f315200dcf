"""A database that cannot be reached now is a `ConnectionError`, whatever the driver and SQLAlchemy call it."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout


@contextmanager
def translate_connection_errors() -> Iterator[None]:
    """Raises `ConnectionError`, which says why in a line, where the block's database cannot be reached now."""
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout, OSError) as error:
        raise ConnectionError(_describe_error(error)) from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise ConnectionError(_describe_error(error)) from error
        raise


def _describe_error(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    return f"{type(cause).__name__}: {(str(cause).strip() or 'no reason given').splitlines()[0]}"
