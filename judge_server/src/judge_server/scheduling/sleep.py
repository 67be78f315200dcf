"""Sleep and wake: when a judge gives its memory to somebody else, and when it takes it back.

A trainer that shares its GPUs with a judge holds a lease, which says for how long the judge should be asleep or awake.
The judge is awake while any lease says so, else asleep while any lease says so, else in its resting state. So what a
dead trainer wished for ends with its lease (docs/decisions/0092).

`SleepControl` drives one engine through awake, falling asleep, asleep and waking. It pauses admission, waits until the
batches at the engine have ended, and only then lets the engine release its memory. Calls wait in the queue until their
deadlines, and do not wake the engine.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from judge_server.errors import CannotLoad, CannotSleep, EngineUnavailable, NotReady
from judge_server.ports import Engine, SleepingEngine
from judge_server.scheduling.admission import Admission
from trainer_client.wire.judges import RestingState, SleepState

log = logging.getLogger("adjudge")

ResultT = TypeVar("ResultT")

_PAUSE_S, _MAX_PAUSE_S = 1.0, 30.0
"""The pause before a failed attempt is repeated: each is twice the one before, up to the most."""


class Lease(NamedTuple):
    """The wish of an owner, a trainer, that the judge be `wants` for `seconds`; 0 ends the owner's lease."""

    owner: str
    wants: RestingState
    seconds: float


class SleepReport(NamedTuple):
    """A judge's state, and the owners whose leases keep it awake."""

    state: SleepState
    kept_awake_by: tuple[str, ...] = ()


def together(reports: Iterable[SleepReport]) -> SleepReport:
    """The report on several engines as one: where they differ, they are on their way."""
    given = list(reports)
    states = {report.state for report in given}
    state = states.pop() if len(states) == 1 else "waking" if not states or "waking" in states else "falling_asleep"
    return SleepReport(state, tuple(sorted({owner for report in given for owner in report.kept_awake_by})))


async def hold_all(holding: Sequence[Awaitable[SleepReport]]) -> SleepReport:
    """Wait for a lease on several engines, and report on them as one. Raises the first error, when all are done."""
    done = await asyncio.gather(*holding, return_exceptions=True)
    for one in done:
        if isinstance(one, BaseException):
            raise one
    return together(one for one in done if isinstance(one, SleepReport))


class SleepControl:
    """Puts an engine to sleep and wakes it, as leases say. Create it in a running event loop.

    Attributes:
        state: the engine's state.
        problem: why the engine cannot get to where its leases want it, which is tried again; empty if it can.
    """

    def __init__(self, engine: Engine, admission: Admission, *, resting: RestingState = "awake") -> None:
        self.state: SleepState = "awake"
        self.problem = ""
        self._engine = engine
        self._admission = admission
        self._resting = resting
        self._leases: dict[str, tuple[RestingState, float]] = {}
        self._must_wake = False  # the engine may have released its memory
        self._pause_s = 0.0
        self._changed = asyncio.Event()
        self._awake = asyncio.Event()
        self._awake.set()
        self._moving = asyncio.Lock()
        self._step: asyncio.Future[EngineUnavailable | None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())

    @property
    def report(self) -> SleepReport:
        """The state, and who keeps the engine awake."""
        return SleepReport(self.state, tuple(sorted(owner for owner, wants in self._wishes() if wants == "awake")))

    async def hold(self, lease: Lease) -> SleepReport:
        """Take or replace the owner's lease, and wait until the engine is where all leases together want it.

        Raises:
            CannotSleep: the engine cannot sleep, and stays awake.
            NotReady: it failed to fall asleep or to wake. The lease holds, and it is tried again.
        """
        if lease.wants == "asleep":
            _sleeping(self._engine)
        self._leases[lease.owner] = lease.wants, asyncio.get_running_loop().time() + lease.seconds
        self._pause_s = 0.0
        self._changed.set()
        while self.state != self._wanted:
            problem = await asyncio.shield(self._step)
            if isinstance(problem, CannotSleep) and lease.wants == "asleep":
                raise problem
            if problem is not None and self.problem:
                raise NotReady(self.problem, retry_after_s=2)
        return self.report

    async def until_awake(self) -> None:
        """Wait until the engine can be called."""
        await self._awake.wait()

    def require_awake(self) -> None:
        """Raise `CannotLoad` if the engine is asleep, or on its way."""
        if self.state != "awake":
            raise CannotLoad("it is asleep; wake it, load the weights, and let it sleep again")

    async def while_idle(self, change: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Pause admission, wait until the batches at the engine have ended, make a change of it, and resume.

        Raises:
            CannotLoad: the engine is asleep, or on its way. Otherwise, raises what `change` does.
        """
        async with self._moving:
            self.require_awake()
            idle = asyncio.Event()
            self._admission.pause(idle.set)
            try:
                if not self._admission.idle:
                    await idle.wait()
                return await change()
            finally:
                self._admission.resume()

    async def close(self) -> None:
        """Stop driving the engine, which stays as it is."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _wishes(self) -> list[tuple[str, RestingState]]:
        now = asyncio.get_running_loop().time()
        return [(owner, wants) for owner, (wants, until) in self._leases.items() if until > now]

    @property
    def _wanted(self) -> RestingState:
        wishes = {wants for _, wants in self._wishes()}
        return "awake" if "awake" in wishes else "asleep" if "asleep" in wishes else self._resting

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            self._leases = {owner: self._leases[owner] for owner, _ in self._wishes()}
            self.problem = ""
            problem: EngineUnavailable | None = None
            try:
                async with self._moving:
                    await self._take_step()
                self._pause_s = 0.0
            except CannotSleep as error:
                problem = error
                self._stay_awake(str(error))
            except EngineUnavailable as error:
                problem = error
                self._fail(str(error))
            except Exception as error:
                log.exception("the engine failed while it fell asleep or woke")
                problem = EngineUnavailable(f"it failed with {type(error).__name__}; see its log")
                self._fail(str(problem))
            step, self._step = self._step, asyncio.get_running_loop().create_future()
            step.set_result(problem)
            await self._wait_for_change()

    async def _take_step(self) -> None:
        """Go as far as is possible now: falling asleep waits for the batches that are at the engine."""
        if self._wanted == "awake":
            if self.state != "awake":
                await self._wake()
        elif self.state != "asleep":
            self._awake.clear()
            self._admission.pause(self._changed.set)
            self.state = "falling_asleep"
            if self._admission.idle:
                engine = _sleeping(self._engine)
                self._must_wake = True
                await engine.sleep()
                self.state = "asleep"
                log.info("the judge is asleep")

    async def _wake(self) -> None:
        self.state = "waking"
        if self._must_wake:
            await _sleeping(self._engine).wake()
            self._must_wake = False
            log.info("the judge is awake")
        self._open()

    def _open(self) -> None:
        self.state = "awake"
        self._awake.set()
        self._admission.resume()

    def _stay_awake(self, why: str) -> None:
        """Drop the leases of those who want to sleep: the engine has released nothing, and cannot."""
        log.warning("the judge stays awake: %s", why)
        self._leases = {owner: lease for owner, lease in self._leases.items() if lease[0] == "awake"}
        self._resting = "awake"
        self._must_wake = False
        self._open()

    def _fail(self, why: str) -> None:
        """Pause before the next attempt, unless another state is wanted meanwhile."""
        waking = self.state == "waking"
        if waking == (self._wanted == "awake"):
            self.problem = f"the judge cannot {'wake' if waking else 'fall asleep'}: {why}"
            self._pause_s = min(max(2 * self._pause_s, _PAUSE_S), _MAX_PAUSE_S)
            log.warning("%s; it is tried again in %g s", self.problem, self._pause_s)

    async def _wait_for_change(self) -> None:
        """Wait for a lease, the end of one, the last batch at the engine, or the time of the next attempt."""
        times = [until for _, until in self._leases.values()]
        if self.problem:
            times.append(asyncio.get_running_loop().time() + self._pause_s)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(min(times, default=None)):
                await self._changed.wait()


def _sleeping(engine: Engine) -> SleepingEngine:
    if not isinstance(engine, SleepingEngine):
        raise CannotSleep("its engine cannot release its memory while it stays started")
    return engine
