"""A service that requires keys, over its own store; and an in-memory key store with a settable clock."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import httpx2

from judge_server.api.app import create_app
from judge_server.api.service import Service
from judge_server.auth import Authenticator
from judge_server.auth.keys import NewKey, make_key
from judge_server.engines.scripted import ScriptedEngine
from judge_server.judging.preparation import Preparer
from judge_server.ledger import Recorder
from judge_server.ports import current_identity, project_salt
from judge_server.scheduling.executor import LocalExecutor
from judge_server.scoring.cache import MemoryCache
from judge_server.scoring.judge import Judge
from rubric_store import RubricStore, RubricTexts, SQLLedger, TenantStore
from rubric_store.tenants.rows import ApiKeyRecord, TokenUsage
from tests.fixtures.clocks import SetForwardClock
from tests.fixtures.short_intervals import RECORDER_TIMES
from trainer_client.wire.tenants import ApiKey, Limits, Project

START = datetime(2026, 2, 3, 12, tzinfo=UTC)
SECRET = b"0123456789abcdef"


@dataclass
class InMemoryApiKeyStore:
    """Keys in memory. `broken` makes every method fail; `reads` counts look-ups; `seconds` is the clocks' time."""

    keys: dict[str, ApiKeyRecord] = field(default_factory=dict)
    used: dict[tuple[str, date], tuple[int, int]] = field(default_factory=dict)
    last_used: dict[str, datetime] = field(default_factory=dict)
    ended: set[tuple[str, str]] = field(default_factory=set)
    broken: bool = False
    reads: int = 0
    seconds: float = 0.0

    def clock(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def authenticator(self, *, required: bool = True) -> Authenticator:
        return Authenticator(self, required=required, clock=self.clock, now=self.now)

    def add(self, *scopes: str, project_id: str = "default", limits: Limits = Limits(), **fields: datetime) -> NewKey:  # noqa: B008
        made = make_key()
        key = ApiKey(id=made.id, project_id=project_id, scopes=scopes, created_at=START, **fields)
        self.keys[made.id] = ApiKeyRecord(key, made.digest, limits)
        return made

    def revoke(self, key_id: str) -> None:
        known = self.keys[key_id]
        self.keys[key_id] = known._replace(key=known.key.model_copy(update={"revoked_at": self.now()}))

    async def find_key(self, key_id: str) -> ApiKeyRecord | None:
        self._tell()
        return self.keys.get(key_id)

    async def projects(self) -> Sequence[Project]:
        self._tell()
        limits = {known.key.project_id: known.limits for known in self.keys.values()}
        return [Project(id=name, created_at=START, limits=of) for name, of in sorted(limits.items())]

    async def end_session(self, project_id: str, session_id: str, expires_at: datetime) -> None:
        self._tell()
        self.ended.add((project_id, session_id))

    async def has_ended(self, project_id: str, session_id: str) -> bool:
        self._tell()
        return (project_id, session_id) in self.ended

    async def record_key_use(self, last_used: Mapping[str, datetime]) -> None:
        self._tell()
        self.last_used.update(last_used)

    async def add_usage(self, day: date, used: Mapping[str, tuple[int, int]]) -> None:
        self._tell()
        for project_id, (requests, tokens) in used.items():
            before = self.used.get((project_id, day), (0, 0))
            self.used[project_id, day] = (before[0] + requests, before[1] + tokens)

    async def used_tokens(self, project_id: str, day: date) -> TokenUsage:
        self._tell()
        of_days = {at: tokens for (project, at), (_, tokens) in self.used.items() if project == project_id}
        return TokenUsage(of_days.get(day, 0), sum(of_days.values()))

    def _tell(self) -> None:
        self.reads += 1
        if self.broken:
            raise ConnectionError("the database is away")


@dataclass
class KeyedService:
    """The application and its stores; `clock` is that of the keys."""

    tenants: TenantStore
    rubrics: RubricStore
    ledger: SQLLedger
    authenticator: Authenticator
    recorder: Recorder
    transport: httpx2.ASGITransport
    clock: SetForwardClock
    all_recorded: bool = False

    @classmethod
    async def start(
        cls, folder: Path, engine: ScriptedEngine | None = None, adapters: Path | None = None, **authenticator: bool
    ) -> "KeyedService":
        """A service on the migrated SQLite file `rubrics.db` in a folder, whose judge loads adapters from another."""
        url = f"sqlite+aiosqlite:///{folder / 'rubrics.db'}"
        tenants, rubrics, ledger = (
            TenantStore(url, actor=lambda: current_identity().actor),
            RubricStore(url, actor=lambda: current_identity().actor),
            SQLLedger(url),
        )
        clock = SetForwardClock()
        kept = Authenticator(tenants, clock=clock, **{"required": True, **authenticator})
        recorder = Recorder(ledger, folder / "spool", times=RECORDER_TIMES)
        service = Service(
            rubrics=rubrics,
            rubric_texts=RubricTexts(),
            recorder=recorder,
            ledger=ledger,
            labels=ledger,
            authenticator=kept,
            audit=tenants,
            keys=tenants,
            projects=tenants,
        )
        service.judges["default"] = await _judge(engine, adapters)
        transport = httpx2.ASGITransport(create_app(service), raise_app_exceptions=False)
        return cls(tenants, rubrics, ledger, kept, recorder, transport, clock)

    async def key(self, *scopes: str, project_id: str = "default") -> str:
        """The text of a new key."""
        made = make_key()
        await self.tenants.add_key(project_id, made.id, made.digest, scopes=scopes)
        return made.text

    def client(self, key: str | None = None) -> httpx2.AsyncClient:
        """A client that sends a key."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx2.AsyncClient(transport=self.transport, base_url="http://adjudge.test", headers=headers)

    async def recorded(self) -> None:
        """Write everything judged so far to the ledger; later judgements are not recorded."""
        if not self.all_recorded:
            self.all_recorded = True
            await asyncio.to_thread(self.recorder.close)

    async def close(self) -> None:
        """Close the stores."""
        await self.recorded()
        await self.tenants.close()
        await self.rubrics.close()
        await self.ledger.close()


async def _judge(engine: ScriptedEngine | None, adapters: Path | None) -> Judge:
    executor = LocalExecutor(engine or ScriptedEngine(), adapters=adapters)
    judge = Judge(executor, MemoryCache(), preparer=Preparer(cache_salt=project_salt))
    await judge.start()
    return judge
