"""The stores of a soak, and their addresses, which may lead through a link.

PostgreSQL keeps its data over a kill. Redis keeps nothing: Adjudge tolerates the loss of the cache and the queue.
"""

from pathlib import Path

from tests.fixtures.postgres import DRIVER
from tests.fixtures.postgres_process import PostgresProcess
from tests.fixtures.redis_process import RedisProcess

from rubric_store import migrations


class Stores:
    """A PostgreSQL, with its data in a folder, and a Redis."""

    def __init__(self, folder: Path) -> None:
        self.postgres, self.redis = PostgresProcess(folder / "postgres"), RedisProcess()

    @property
    def database(self) -> str:
        """The database's URL for psycopg, past all links."""
        return self.postgres.url.set(drivername="postgresql").render_as_string(hide_password=False)

    def start(self) -> None:
        """Start both, with the tables of Adjudge."""
        self.postgres.start()
        self.redis.start()
        migrations.upgrade(self.store_url())

    def close(self) -> None:
        """Kill both."""
        self.redis.kill()
        self.postgres.kill()

    def store_url(self, port: int | None = None, database: str = "postgres") -> str:
        """Return the URL of a database for Adjudge, through a port or directly."""
        url = self.postgres.url.set(drivername=DRIVER, port=port or self.postgres.port, database=database)
        return url.render_as_string(hide_password=False)

    def redis_url(self, database: int, port: int | None = None) -> str:
        """Return the URL of a database of Redis, through a port or directly."""
        return f"redis://127.0.0.1:{port or self.redis.port}/{database}"
