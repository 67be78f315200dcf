"""An engine pool: several engines of one model that act as one engine.

`judge_server.scheduling.pools` chooses the member for each batch, so that a response's calls stay together. This module
decides which outcomes are asked again of another member, and which count against a member's circuit breaker. A member
that was down is created anew and must prove to be the same judge as the others before it rejoins.
"""

import asyncio
import logging
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from judge_server.errors import CannotLoad, CannotSleep, EngineNotReady, EngineStartError, EngineUnavailable
from judge_server.ports import (
    Adapter,
    Batch,
    CallFailure,
    Engine,
    EngineIdentity,
    LoadingEngine,
    MemberView,
    PoolState,
    Reply,
    SleepingEngine,
)
from judge_server.scheduling.pools import CircuitBreaker, Member, MemberUnavailable, Pool, PoolRules, key_of

log = logging.getLogger("adjudge")

STRAGGLER_TIMEOUT_S = 30.0
"""How long the other members may take once one has started. A slower one joins when it is up."""

_HEADROOM = 1.5
_CALLS_WAITING = 8
"""How many calls a pool takes: this factor times what its members work on, and at least this many more for each.

Without any headroom, members idle while another has more than its part; with too much, a run waits behind all of it.
"""

_RETRIED_KINDS = frozenset({"engine", "overloaded"})
_BREAKER_KINDS = frozenset({"engine", "timeout"})
_MISSING_ANSWER = CallFailure("engine", "the engine ended a batch without an answer to this call")
_OURS = re.compile(r"HTTP \d{3}|no answer from \S+[^\s:]|the endpoint sent nothing for \S+ s")


def difference(one: EngineIdentity, other: EngineIdentity) -> str:
    """Return the first difference between two identities, in words; empty if they are the same judge.

    The number of concurrent batches does not count.
    """
    theirs = dict(_fields(asdict(other)))
    for name, value in _fields(asdict(one)):
        if name != "concurrent_batches" and value != theirs[name]:
            return f"its {name} is {value!r}, not {theirs[name]!r}"
    return ""


class LoadedAdapter(NamedTuple):
    """What members have loaded: the arguments of `LoadingEngine.load`."""

    adapter: Adapter | None
    version: str


class PooledEngine:
    """A member's engine, and its start in progress.

    Attributes:
        name: the member's name, without credentials.
        engine: the current engine; a new one after each start.
        up: whether it has started and is the same judge as the pool.
        asleep: whether it may have released its memory, so that it must be woken before it is asked.
        released: whether it has released its memory, so that it cannot be checked.
        why: why it is not up, if it is not.
        may_recover: whether its last start failed in a way that may pass.
        batches: how many batches it takes at a time; 0 until it has been up.
        weights: what it loads after each start; None for nothing but the weights of its URL.
    """

    def __init__(self, name: str, make: Callable[[], Engine], start_breaker: CircuitBreaker) -> None:
        self.name = name
        self.engine = make()
        self.up = False
        self.asleep = self.released = False
        self.why = "it has not started yet"
        self.may_recover = False
        self.batches = 0
        self.weights: LoadedAdapter | None = None
        self._make = make
        self._used = False
        self._start_breaker = start_breaker
        self._starting: asyncio.Task[EngineIdentity | None] | None = None

    async def start(self) -> EngineIdentity | None:
        """Start the engine and return its identity; None if it cannot start now or the breaker is open.

        The start continues if the wait for it is cancelled, and the next call waits for the same one.
        """
        if self._starting is None:
            if not self._start_breaker.try_acquire():
                return None
            self._starting = asyncio.create_task(self._start())
        starting = self._starting
        await asyncio.wait({starting})
        self._starting = None
        identity = starting.result()
        if identity is None:
            self._start_breaker.failed()
        return identity

    def accept(self, identity: EngineIdentity) -> None:
        """Mark the engine as up, as the same judge as the pool."""
        self.up, self.why, self.batches = True, "", identity.concurrent_batches
        self.asleep = self.released = False
        self._start_breaker.succeeded()

    def reject(self, why: str) -> None:
        """Mark the engine as a different judge, to be started again after a pause."""
        self.up, self.why = False, why
        self._start_breaker.failed()

    async def sleep(self) -> None:
        """Have the engine release its memory. Raises as `SleepingEngine.sleep` does."""
        if not isinstance(self.engine, SleepingEngine):
            raise CannotSleep(f"{self.name}: its engine cannot release its memory while it stays started")
        self.asleep = True
        try:
            await self.engine.sleep()
            self.released = True
        except EngineUnavailable as error:
            self.asleep = not isinstance(error, CannotSleep)
            raise type(error)(f"{self.name}: {error}") from error

    async def wake(self) -> None:
        """Have the engine take its memory again. Raises `EngineUnavailable`."""
        if self.asleep and isinstance(self.engine, SleepingEngine):
            await self.engine.wake()
            self.asleep = self.released = False

    async def load(self, weights: LoadedAdapter) -> EngineIdentity:
        """Have the engine load other weights, and after each later start. Raises as `LoadingEngine.load` does."""
        if not isinstance(self.engine, LoadingEngine):
            raise CannotLoad(f"{self.name}: its engine cannot load other weights while it stays started")
        try:
            return await self.engine.load(*weights)
        except EngineUnavailable as error:
            raise type(error)(f"{self.name}: {error}") from error

    async def close(self) -> None:
        """Cancel a start in progress, and release the engine."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait({self._starting})
        await self.engine.close()

    async def _start(self) -> EngineIdentity | None:
        if self._used:
            await self.engine.close()
            self.engine = self._make()
        self._used = True
        try:
            identity = await self.engine.start()
            return identity if self.weights is None else await self.load(self.weights)
        except (EngineStartError, EngineUnavailable, OSError) as error:
            self.why, self.may_recover = str(error), isinstance(error, EngineNotReady)
            return None


def _fields(parts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in parts.items():
        if isinstance(value, Mapping):
            yield from _fields(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


class EnginePool:
    """Engines by name. Each is made by a function, because a member that was down is created anew."""

    fatal_error = ""

    def __init__(
        self,
        engines: Mapping[str, Callable[[], Engine]],
        rules: PoolRules = PoolRules(),  # noqa: B008 - a frozen value
        *,
        straggler_timeout_s: float = STRAGGLER_TIMEOUT_S,
    ) -> None:
        restart = replace(rules, failures=1, pause_s=rules.interval_s)
        pooled = {name: PooledEngine(name, make, restart.breaker()) for name, make in engines.items()}
        self._pool = Pool(pooled, self._check_health, rules)
        self._straggler_timeout_s = straggler_timeout_s
        self._identity: EngineIdentity | None = None
        self._asleep = self._loading = False

    def members(self) -> list[MemberView]:
        """Return each member's name, state and number of calls in flight."""
        return [member.view for member in self._pool.members]

    @property
    def pool(self) -> PoolState:
        """Itself."""
        return self

    @property
    def concurrent_calls(self) -> int | None:
        """How many calls the members take, with enough waiting that none idles; None if one limits only batches."""
        calls = [member.target.engine.concurrent_calls for member in self._pool.members]
        numbers = [number for number in calls if number is not None]
        if len(numbers) < len(calls):
            return None
        together = sum(numbers)
        return max(math.ceil(_HEADROOM * together), together + _CALLS_WAITING * len(numbers))

    @property
    def capacity(self) -> int:
        """How many batches the members that are up take together now."""
        return sum(member.target.batches for member in self._pool.members if not member.gone.is_set())

    async def start(self) -> EngineIdentity:
        """Start all members at once. One is enough; the others join when they are up.

        The identity's `concurrent_batches` is the sum over the members that have started.

        Raises:
            EngineNotReady: no member has started, but all may start later; the message gives each one's reason.
            EngineStartError: no member has started and one of them never can, or two members are not the same judge.
        """
        starting = {asyncio.create_task(member.target.start()): member.target for member in self._pool.members}
        pending = set(starting)
        identities: dict[str, EngineIdentity] = {}
        try:
            while pending:
                timeout_s = self._straggler_timeout_s if identities else None
                done, pending = await asyncio.wait(pending, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                for task in done:
                    if (identity := task.result()) is not None:
                        identities[starting[task].name] = identity
        finally:
            for task in pending:
                task.cancel()
        self._identity = identity = self._common_identity(identities)
        for member in self._pool.members:
            if member.name in identities:
                member.target.accept(identities[member.name])
            else:
                member.mark_down(member.target.why)
        self._pool.start()
        return identity

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """Answer with the member that the batch's shared text is assigned to.

        Calls that it fails, refuses or leaves unanswered, and calls in flight when it is found down, go to the next
        member; each member is asked at most once.
        """
        key = _key(batch)
        left = dict(enumerate(batch.calls))
        failed: dict[int, CallFailure] = {}
        tried: set[str] = set()
        while left and (member := self._pool.choose(key, len(left), exclude=tried)) is not None:
            tried.add(member.name)
            indices = list(left)
            part = replace(batch, calls=tuple(left.values()))
            with self._pool.held(member, len(indices)):
                answers = self._ask(member, part)
                try:
                    async for place, outcome in answers:
                        index = indices[place]
                        if isinstance(outcome, CallFailure) and outcome.kind in _RETRIED_KINDS:
                            failed[index] = outcome
                        else:
                            del left[index]
                            yield index, outcome
                finally:
                    await answers.aclose()
        for index in left:
            yield index, failed.get(index) or self._no_member_failure()

    async def count_tokens(self, batch: Batch) -> int:
        """Count with the first available member that can; raises `EngineUnavailable` if none can."""
        why = self._no_member_failure().detail
        for member in self._pool.in_order(_key(batch)):
            try:
                async with member.cancel_when_gone():
                    return await member.target.engine.count_tokens(batch)
            except (EngineUnavailable, MemberUnavailable) as error:
                why = str(error)
        raise EngineUnavailable(why)

    async def ready(self) -> bool:
        """Whether any member could answer a batch now."""
        available = [member for member in self._pool.members if member.available]
        return any(await asyncio.gather(*(member.target.engine.ready() for member in available)))

    async def sleep(self) -> None:
        """Put every member that is up to sleep. Those asleep are not checked, and none is started, until `wake`.

        Raises:
            CannotSleep: a member cannot sleep; the others are awake again.
            EngineUnavailable: a member failed to fall asleep. If it is down, it is left out of the next attempt.
        """
        self._asleep = True
        up = [member.target for member in self._pool.members if not member.gone.is_set()]
        done = await asyncio.gather(*(pooled.sleep() for pooled in up), return_exceptions=True)
        errors = [error for error in done if isinstance(error, BaseException)]
        if refusal := next((error for error in errors if isinstance(error, CannotSleep)), None):
            await self.wake()
            raise refusal
        if errors:
            raise errors[0]

    async def wake(self) -> None:
        """Wake every member. One that fails is out of the pool until it is started again.

        Raises `EngineUnavailable` if none is awake.
        """
        up = [member for member in self._pool.members if not member.gone.is_set()]
        done = await asyncio.gather(*(member.target.wake() for member in up), return_exceptions=True)
        failed = [(member, error) for member, error in zip(up, done, strict=True) if isinstance(error, BaseException)]
        if len(failed) == len(self._pool.members):
            raise EngineUnavailable("; ".join(f"{member.name}: {error}" for member, error in failed))
        for member, error in failed:
            member.mark_down(f"it does not wake: {error}")
        self._asleep = False

    async def load(self, adapter: Adapter | None, version: str) -> EngineIdentity:
        """Have every member that is up load other weights. A member that is down loads them when it is started again.

        Raises:
            CannotLoad: a member cannot. The others have the weights before again, or are out of the pool until then.
            EngineUnavailable: no member has known weights.
        """
        up = [member for member in self._pool.members if not member.gone.is_set()]
        wanted = LoadedAdapter(adapter, version)
        self._loading = True  # no member is checked, nor joins with the weights before
        try:
            done = await asyncio.gather(*(member.target.load(wanted) for member in up), return_exceptions=True)
            errors = [one for one in done if isinstance(one, BaseException)]
            if not errors:
                identities = [one for one in done if isinstance(one, EngineIdentity)]
                self._identity = self._common_identity(
                    dict(zip([member.name for member in up], identities, strict=True))
                )
                for member in self._pool.members:
                    member.target.weights = wanted
                return self._identity
            await asyncio.gather(*map(self._take_back, up, done))
        except EngineStartError as error:  # the members are not the same judge, or none is up
            await asyncio.gather(*map(self._take_back, up, done))
            raise CannotLoad(str(error)) from error
        finally:
            self._loading = False
        refused = all(isinstance(error, CannotLoad) for error in errors)
        known = refused or any(not member.gone.is_set() for member in up)
        raise (CannotLoad if known else EngineUnavailable)("; ".join(map(str, errors)))

    async def _take_back(self, member: Member[PooledEngine], loaded: EngineIdentity | BaseException) -> None:
        """Give a member the weights before, if it has others. If that fails, it is started again, out of the pool."""
        if isinstance(loaded, CannotLoad):
            return
        why = str(loaded)
        if isinstance(loaded, EngineIdentity):
            assert self._identity is not None
            try:
                found = await member.target.load(member.target.weights or LoadedAdapter(None, "start"))
                why = difference(found, self._identity)
            except EngineUnavailable as error:
                why = str(error)
        if why:
            member.mark_down(f"it does not get its weights back: {why}")

    async def close(self) -> None:
        """Release all members; calls in flight fail."""
        await self._pool.close()
        await asyncio.gather(*(member.target.close() for member in self._pool.members))

    async def _ask(
        self, member: Member[PooledEngine], batch: Batch
    ) -> AsyncGenerator[tuple[int, Reply | CallFailure], None]:
        """Yield one member's outcome for each call, and report its last one to its circuit breaker."""
        left = set(range(len(batch.calls)))
        answers = member.target.engine.answer(batch)
        last: Reply | CallFailure | None = None
        why = _MISSING_ANSWER
        try:
            while left:
                async with member.cancel_when_gone():
                    place, outcome = await anext(answers)
                last = outcome
                member.answers += isinstance(outcome, Reply)
                left.discard(place)
                yield place, outcome
        except StopAsyncIteration:
            last = why
        except MemberUnavailable:
            why = CallFailure("engine", f"{member.name} went down before it answered")
        except Exception as error:
            log.exception("%s failed in a batch of %d calls", member.name, len(batch.calls))
            last = why = CallFailure("engine", f"{member.name} failed with {type(error).__name__}; see the log")
        finally:
            if (close := getattr(answers, "aclose", None)) is not None:
                await close()
            if isinstance(last, Reply):
                member.succeeded()
            elif last is not None and last.kind in _BREAKER_KINDS:
                member.failed(_loggable(last))
        for place in sorted(left):
            yield place, why

    async def _check_health(self, pooled: PooledEngine) -> bool:
        """Whether a member is healthy. One that is down is started again, and accepted if it is the same judge."""
        gone = self._pool.member(pooled.name).gone.is_set()
        if self._loading or (self._asleep and (gone or pooled.released)):
            return not gone
        if pooled.up and not gone:
            return await pooled.engine.ready()
        pooled.up = False
        reported = pooled.why
        identity = await pooled.start()
        if identity is None or self._loading:
            return False
        assert self._identity is not None
        if not (differs := difference(identity, self._identity)):
            pooled.accept(identity)
            if self._asleep:  # the others fell asleep while this one was started
                await pooled.sleep()
            return True
        why = f"it came back as another judge: {differs}"
        if why != reported:
            log.warning("%s stays out of the pool: %s", pooled.name, why)
        pooled.reject(why)
        return False

    def _common_identity(self, identities: Mapping[str, EngineIdentity]) -> EngineIdentity:
        """Return the identity that the started members have in common."""
        if not identities:
            whys = "; ".join(f"{member.name}: {member.target.why}" for member in self._pool.members)
            refusal = (
                EngineNotReady if all(member.target.may_recover for member in self._pool.members) else EngineStartError
            )
            raise refusal(f"no engine of the pool can start. {whys}")
        first, *others = (member.name for member in self._pool.members if member.name in identities)
        for other in others:
            if differs := difference(identities[other], identities[first]):
                raise EngineStartError(
                    f"{other} is not the same judge as {first}: {differs}. All engines of a pool must have the same "
                    "model, server and settings; correct the engine URLs"
                )
        together = sum(identity.concurrent_batches for identity in identities.values())
        return replace(identities[first], concurrent_batches=together)

    def _no_member_failure(self) -> CallFailure:
        states = ", ".join(f"{view.name} is {view.state}" for view in self.members())
        return CallFailure("engine", f"no engine of the pool can be asked now: {states}")


def _loggable(failure: CallFailure) -> str:
    """Return what may be logged of a failure. An endpoint's own message may repeat the prompt, so it is left out."""
    ours = _OURS.match(failure.detail)
    return f"calls fail ({failure.kind})" if ours is None else f"calls fail ({failure.kind}: {ours[0]})"


def _key(batch: Batch) -> bytes:
    """Return the key that keeps the calls about one response together."""
    return key_of(f"{batch.system}\0{batch.shared}")
