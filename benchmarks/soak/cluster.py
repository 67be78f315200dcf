"""Two apis, two judges, two workers, a PostgreSQL and a Redis, each a process, with a link on every way between them.

The judges' links are their own: every api knows a judge by the same address, since a call's judge is chosen by it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.soak.hosts import AdjudgeProcess
from benchmarks.soak.links import Network
from benchmarks.soak.stores import PostgreSQL, Valkey
from rubric_store import migrations

FENCES = "those of a soak, of some length"
NUMBERS = (1, 2)


class Cluster:
    """All of it. `url` is where trainers find an api, as at a load balancer; `settings` go to every process."""

    def __init__(self, folder: Path, engine: str, settings: dict[str, str]) -> None:
        self.folder = folder
        self.network = Network()
        self.postgres = PostgreSQL("postgres", folder / "postgres")
        self.redis = Valkey("redis", folder / "redis")
        link, known = self.network.link, settings | {"ADJUDGE_FENCE_SECRET": FENCES}
        self.judges = {}
        for n in NUMBERS:
            cache = self.redis.url(link(f"judge-{n} to redis", self.redis.port), 0)
            arguments = ("judge", "--engine", engine)
            self.judges[n] = AdjudgeProcess(f"judge-{n}", folder, arguments, known | {"ADJUDGE_CACHE_URL": cache})
        judges = " ".join(
            f"http://127.0.0.1:{link(f'apis to judge-{n}', judge.port)}" for n, judge in self.judges.items()
        )
        self.apis = {}
        for n in NUMBERS:
            redis = link(f"api-{n} to redis", self.redis.port)
            named = self._stores(f"api-{n}", redis) | {
                "ADJUDGE_JUDGES": judges,
                "ADJUDGE_CACHE_URL": self.redis.url(redis, 0),
            }
            self.apis[n] = AdjudgeProcess(f"api-{n}", folder, ("api",), known | named)
        apis = [api.port for api in self.apis.values()]
        self.url = f"http://127.0.0.1:{link('trainers to apis', *apis)}"
        self.workers = {}
        for n in NUMBERS:
            named = self._stores(f"worker-{n}", link(f"worker-{n} to redis", self.redis.port))
            named["ADJUDGE_URL"] = f"http://127.0.0.1:{link(f'worker-{n} to apis', *apis)}"
            ready_message = "Adjudge works on operations"
            self.workers[n] = AdjudgeProcess(
                f"worker-{n}", folder, ("worker", "--concurrency", "2"), known | named, ready_message=ready_message
            )

    @property
    def hosts(self) -> list[AdjudgeProcess]:
        """The processes of `adjudge`, in the order in which they are started."""
        return [*self.judges.values(), *self.apis.values(), *self.workers.values()]

    @property
    def database(self) -> str:
        """Its database, past all links, as psycopg takes it."""
        return self.postgres.url(self.postgres.port, "postgresql")

    def start(self) -> None:
        """Start everything and wait until it is ready."""
        self.postgres.start()
        self.redis.start()
        migrations.upgrade(self.postgres.url(self.postgres.port))
        for host in self.hosts:
            host.start()
        for host in self.hosts:
            host.wait_until_ready()

    def close(self) -> None:
        """Kill all of it."""
        for host in self.hosts:
            host.close()
        self.redis.kill()
        self.postgres.kill()
        self.network.close()

    def _stores(self, name: str, redis: int) -> dict[str, str]:
        return {
            "ADJUDGE_DATABASE_URL": self.postgres.url(self.network.link(f"{name} to postgres", self.postgres.port)),
            "ADJUDGE_QUEUE_URL": self.redis.url(redis, 1),
        }


@contextmanager
def running_cluster(folder: Path, engine: str, **settings: str) -> Iterator[Cluster]:
    """A cluster that is ready, with its data and logs in a folder."""
    cluster = Cluster(folder, engine, settings)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
