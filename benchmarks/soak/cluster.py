"""A cluster of processes: two apis, two judges, two workers, PostgreSQL and Redis, with links between them.

All apis share one link per judge and so know it by the same address, since a call's judge is chosen by address.
"""

from pathlib import Path

from benchmarks.server import AdjudgeProcess
from benchmarks.soak.links import Network
from benchmarks.soak.stores import Stores

SIGNING_KEY = "that of a soak, of some length"
NUMBERS = (1, 2)


class Cluster:
    """The processes of a cluster. `url` leads trainers to the apis, like a load balancer's.

    `settings` are environment variables of every `adjudge` process.
    """

    def __init__(self, folder: Path, engine: str, settings: dict[str, str]) -> None:
        self.folder = folder
        self.network = Network()
        self.stores = Stores(folder)
        link, redis_url = self.network.link, self.stores.redis_url
        shared = settings | {"ADJUDGE_SIGNING_SECRET": SIGNING_KEY}
        self.judges = {}
        for n in NUMBERS:
            cache = {"ADJUDGE_CACHE_URL": redis_url(0, link(f"judge-{n} to redis", self.stores.redis.port))}
            self.judges[n] = AdjudgeProcess(f"judge-{n}", folder, ("judge", "--engine", engine), shared | cache)
        judges = " ".join(
            f"http://127.0.0.1:{link(f'apis to judge-{n}', judge.port)}" for n, judge in self.judges.items()
        )
        self.apis = {}
        for n in NUMBERS:
            redis = link(f"api-{n} to redis", self.stores.redis.port)
            urls = self._stores(f"api-{n}", redis)
            urls |= {"ADJUDGE_JUDGES": judges, "ADJUDGE_CACHE_URL": redis_url(0, redis)}
            self.apis[n] = AdjudgeProcess(f"api-{n}", folder, ("api",), shared | urls)
        apis = [api.port for api in self.apis.values()]
        self.url = f"http://127.0.0.1:{link('trainers to apis', *apis)}"
        self.workers = {}
        for n in NUMBERS:
            urls = self._stores(f"worker-{n}", link(f"worker-{n} to redis", self.stores.redis.port))
            urls["ADJUDGE_URL"] = f"http://127.0.0.1:{link(f'worker-{n} to apis', *apis)}"
            command, ready_message = ("worker", "--concurrency", "2"), "Adjudge worker started"
            self.workers[n] = AdjudgeProcess(f"worker-{n}", folder, command, shared | urls, ready_message=ready_message)

    @property
    def hosts(self) -> list[AdjudgeProcess]:
        """The `adjudge` processes, in start order."""
        return [*self.judges.values(), *self.apis.values(), *self.workers.values()]

    def start(self) -> None:
        """Start all processes and wait until they are ready."""
        self.stores.start()
        for host in self.hosts:
            host.start()
        for host in self.hosts:
            host.wait_until_ready()

    def close(self) -> None:
        """Kill all processes."""
        for host in self.hosts:
            host.close()
        self.stores.close()
        self.network.close()

    def _stores(self, name: str, redis: int) -> dict[str, str]:
        postgres = self.network.link(f"{name} to postgres", self.stores.postgres.port)
        return {
            "ADJUDGE_DATABASE_URL": self.stores.store_url(postgres),
            "ADJUDGE_QUEUE_URL": self.stores.redis_url(1, redis),
        }
