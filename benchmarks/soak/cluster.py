"""A cluster of processes: two apis, two judges, two workers, PostgreSQL and Redis, with links between them.

All apis share one link per judge and so know it by the same address, since a call's judge is chosen by address.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fixtures.postgres_process import PostgresProcess
from tests.fixtures.redis_process import RedisProcess

from benchmarks.soak.hosts import AdjudgeProcess
from benchmarks.soak.links import Network
from benchmarks.soak.stores import psycopg_url, redis_url, store_url
from rubric_store import migrations

SIGNING_KEY = "that of a soak, of some length"
NUMBERS = (1, 2)


class Cluster:
    """The processes of a cluster. `url` leads trainers to the apis, like a load balancer's.

    `settings` are environment variables of every `adjudge` process.
    """

    def __init__(self, folder: Path, engine: str, settings: dict[str, str]) -> None:
        self.folder = folder
        self.network = Network()
        self.postgres, self.redis = PostgresProcess(folder / "postgres"), RedisProcess()
        link, shared = self.network.link, settings | {"ADJUDGE_SIGNING_SECRET": SIGNING_KEY}
        self.judges = {}
        for n in NUMBERS:
            cache = redis_url(link(f"judge-{n} to redis", self.redis.port), 0)
            arguments = ("judge", "--engine", engine)
            self.judges[n] = AdjudgeProcess(f"judge-{n}", folder, arguments, shared | {"ADJUDGE_CACHE_URL": cache})
        judges = " ".join(
            f"http://127.0.0.1:{link(f'apis to judge-{n}', judge.port)}" for n, judge in self.judges.items()
        )
        self.apis = {}
        for n in NUMBERS:
            redis = link(f"api-{n} to redis", self.redis.port)
            urls = self._stores(f"api-{n}", redis) | {
                "ADJUDGE_JUDGES": judges,
                "ADJUDGE_CACHE_URL": redis_url(redis, 0),
            }
            self.apis[n] = AdjudgeProcess(f"api-{n}", folder, ("api",), shared | urls)
        apis = [api.port for api in self.apis.values()]
        self.url = f"http://127.0.0.1:{link('trainers to apis', *apis)}"
        self.workers = {}
        for n in NUMBERS:
            urls = self._stores(f"worker-{n}", link(f"worker-{n} to redis", self.redis.port))
            urls["ADJUDGE_URL"] = f"http://127.0.0.1:{link(f'worker-{n} to apis', *apis)}"
            ready_message = "Adjudge worker started"
            self.workers[n] = AdjudgeProcess(
                f"worker-{n}", folder, ("worker", "--concurrency", "2"), shared | urls, ready_message=ready_message
            )

    @property
    def hosts(self) -> list[AdjudgeProcess]:
        """The `adjudge` processes, in start order."""
        return [*self.judges.values(), *self.apis.values(), *self.workers.values()]

    @property
    def database(self) -> str:
        """The database's URL for psycopg, bypassing all links."""
        return psycopg_url(self.postgres)

    def start(self) -> None:
        """Start all processes and wait until they are ready."""
        self.postgres.start()
        self.redis.start()
        migrations.upgrade(store_url(self.postgres))
        for host in self.hosts:
            host.start()
        for host in self.hosts:
            host.wait_until_ready()

    def close(self) -> None:
        """Kill all processes."""
        for host in self.hosts:
            host.close()
        self.redis.kill()
        self.postgres.kill()
        self.network.close()

    def _stores(self, name: str, redis: int) -> dict[str, str]:
        return {
            "ADJUDGE_DATABASE_URL": store_url(
                self.postgres, self.network.link(f"{name} to postgres", self.postgres.port)
            ),
            "ADJUDGE_QUEUE_URL": redis_url(redis, 1),
        }


@contextmanager
def running_cluster(folder: Path, engine: str, **settings: str) -> Iterator[Cluster]:
    """Run a cluster within the block, with its data and logs in a folder."""
    cluster = Cluster(folder, engine, settings)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
