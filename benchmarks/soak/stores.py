"""The addresses of a soak's stores, which may be reached through a link.

PostgreSQL keeps its data over a kill. Redis keeps nothing: Adjudge tolerates the loss of the cache and the queue.
"""

from tests.fixtures.postgres import DRIVER
from tests.fixtures.postgres_process import PostgresProcess


def store_url(postgres: PostgresProcess, port: int | None = None, database: str = "postgres") -> str:
    """Return the URL of a database for Adjudge, through a port or directly."""
    url = postgres.url.set(drivername=DRIVER, port=port or postgres.port, database=database)
    return url.render_as_string(hide_password=False)


def psycopg_url(postgres: PostgresProcess) -> str:
    """Return the URL of the database for psycopg, past all links."""
    return postgres.url.set(drivername="postgresql").render_as_string(hide_password=False)


def redis_url(port: int, database: int) -> str:
    """Return the URL of one of the databases of the Redis behind a port."""
    return f"redis://127.0.0.1:{port}/{database}"
