"""Several engines of one model as one engine.

Several engines of one model as one engine: a response's calls stay together, and faults move them on.

Which member a batch goes to is the pool's to say (`judge_server.pools`); how one is started is `pool_member`'s. What is
here: which outcomes are asked again of another member, and what a member's breaker is told.

One engine of a pool: started again until it is up, and held to be the same judge as the others.

An engine that was away is made anew and asked again what it is: it may have come back as something else.
"""

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from judge_server.errors import EngineNotReady, EngineStartError, EngineUnavailable
from judge_server.pools import CircuitBreaker, Member, MemberUnavailable, MemberView, Pool, key_of
from judge_server.ports import Batch, CallFailure, Engine, EngineIdentity, Reply


def difference(one: EngineIdentity, other: EngineIdentity) -> str:
    """The first thing in which `one` differs from `other`, in words; empty where they are the same judge.

    How many batches they take at a time makes no difference.
    """
    theirs = dict(_fields(asdict(other)))
    for name, value in _fields(asdict(one)):
        if name != "concurrent_batches" and value != theirs[name]:
            return f"its {name} is {value!r}, not {theirs[name]!r}"
    return ""


class PooledEngine:
    """An engine, and the start that is under way.

    Attributes:
        name: what it is called; it holds no credentials.
        engine: the engine in force, another one after each start.
        up: it has started and is the judge that the pool is.
        why: why it is not up, where it is not.
        away: its last start failed in a way that may pass.
        batches: how many batches it takes at a time, once it has been up.
    """

    def __init__(self, name: str, make: Callable[[], Engine], start_breaker: CircuitBreaker) -> None:
        self.name = name
        self.engine = make()
        self.up = False
        self.why = "it has not started yet"
        self.may_recover = False
        self.batches = 0
        self._make = make
        self._used = False
        self._start_breaker = start_breaker
        self._starting: asyncio.Task[EngineIdentity | None] | None = None

    async def start(self) -> EngineIdentity | None:
        """What it is, once it has started; None where it cannot start now, or is to be left alone for a while.

        A start goes on where the wait for it is cancelled; the next call waits for the same one.
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
        """It is the judge that the pool is."""
        self.up, self.why, self.batches = True, "", identity.concurrent_batches
        self._start_breaker.succeeded()

    def reject(self, why: str) -> None:
        """It has started as something else, and is tried again after a pause."""
        self.up, self.why = False, why
        self._start_breaker.failed()

    async def close(self) -> None:
        """Start no more, and release the engine."""
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
            return await self.engine.start()
        except (EngineStartError, OSError) as error:
            self.why, self.may_recover = str(error), isinstance(error, EngineNotReady)
            return None


def _fields(parts: Mapping[str, Any], of: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in parts.items():
        if isinstance(value, Mapping):
            yield from _fields(value, f"{of}{name}.")
        else:
            yield f"{of}{name}", value


log = logging.getLogger("adjudge")

STRAGGLER_TIMEOUT_S = 30.0
"""How long the others may still take once one has started; what takes longer joins when it is up."""

_RETRIED_KINDS = frozenset({"engine", "overloaded"})
_BREAKER_KINDS = frozenset({"engine", "timeout"})
_MISSING_ANSWER = CallFailure("engine", "the engine ended a batch without an answer to this call")
_OURS = re.compile(r"HTTP \d{3}|no answer from \S+[^\s:]|the endpoint sent nothing for \S+ s")


class EnginePool:
    """Engines by name; each is made by a function, since one that was away is made anew.

    `every_s` seconds lie between two looks at a member's health; `options` are those of `Pool`.
    """

    fatal_error = ""
    concurrent_calls = None  # a member has places of its own, which a batch of another member leaves free

    def __init__(
        self,
        engines: Mapping[str, Callable[[], Engine]],
        *,
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = 2.0,
        straggler_timeout_s: float = STRAGGLER_TIMEOUT_S,
        **options: Any,
    ) -> None:
        pooled = {
            name: PooledEngine(name, make, CircuitBreaker(clock, failures=1, pause_s=interval_s))
            for name, make in engines.items()
        }
        self._pool = Pool(pooled, self._check_health, clock=clock, interval_s=interval_s, **options)
        self._straggler_timeout_s = straggler_timeout_s
        self._identity: EngineIdentity | None = None

    def members(self) -> list[MemberView]:
        """Each member's name, state, and calls under way."""
        return [member.view for member in self._pool.members]

    @property
    def capacity(self) -> int:
        """How many batches those that are up take together at this moment."""
        return sum(member.target.batches for member in self._pool.members if not member.gone.is_set())

    async def start(self) -> EngineIdentity:
        """Start all at once; one is enough, and the others join as they come up.

        The identity's `concurrent_batches` is the sum over those that have started.

        Raises:
            EngineAway: none has started, with each one's reason, and all may come later: try again.
            EngineStartError: none has started, and one of them never will; or two are not the same judge.
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
        """Answer by the member that the batch's shared text belongs to.

        Calls that it fails, refuses or leaves out, or that hang when it is found gone, are asked of the next member,
        of each at most once.
        """
        key = _key(batch)
        left = dict(enumerate(batch.calls))
        failed: dict[int, CallFailure] = {}
        tried: set[str] = set()
        while left and (member := self._pool.choose(key, len(left), exclude=tried)) is not None:
            tried.add(member.name)
            places = list(left)
            part = replace(batch, calls=tuple(left.values()))
            with self._pool.held(member, len(places)):
                asking = self._ask(member, part)
                try:
                    async for place, outcome in asking:
                        index = places[place]
                        if isinstance(outcome, CallFailure) and outcome.kind in _RETRIED_KINDS:
                            failed[index] = outcome
                        else:
                            del left[index]
                            yield index, outcome
                finally:
                    await asking.aclose()
        for index in left:
            yield index, failed.get(index) or self._no_member_failure()

    async def count_tokens(self, batch: Batch) -> int:
        """Counted by the first available member that can; raises `EngineUnavailable` where none can."""
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

    async def close(self) -> None:
        """Release all members; calls in flight fail."""
        await self._pool.close()
        await asyncio.gather(*(member.target.close() for member in self._pool.members))

    async def _ask(
        self, member: Member[PooledEngine], batch: Batch
    ) -> AsyncGenerator[tuple[int, Reply | CallFailure], None]:
        """One member's outcomes, one for each call, and its breaker is told how it did last."""
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
            why = CallFailure("engine", f"{member.name} was found gone before it answered")
        except Exception as error:
            log.exception("%s broke off a batch of %d calls", member.name, len(batch.calls))
            last = why = CallFailure("engine", f"{member.name} broke off: {type(error).__name__}; the log says more")
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
        """Whether a member is well; one that is gone is started until it is up and the same judge as the others."""
        if pooled.up and not self._pool.member(pooled.name).gone.is_set():
            return await pooled.engine.ready()
        pooled.up = False
        told = pooled.why
        identity = await pooled.start()
        if identity is None:
            return False
        assert self._identity is not None
        if not (differs := difference(identity, self._identity)):
            pooled.accept(identity)
            return True
        why = f"it came back as another judge: {differs}"
        if why != told:
            log.warning("%s stays out of the pool: %s", pooled.name, why)
        pooled.reject(why)
        return False

    def _common_identity(self, identities: Mapping[str, EngineIdentity]) -> EngineIdentity:
        """What all that have started are together."""
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
                    f"{other} is another judge than {first}: {differs}. All engines of a pool must have the same "
                    "model, server and settings; correct the engine URL"
                )
        together = sum(identity.concurrent_batches for identity in identities.values())
        return replace(identities[first], concurrent_batches=together)

    def _no_member_failure(self) -> CallFailure:
        states = ", ".join(f"{view.name} is {view.state}" for view in self.members())
        return CallFailure("engine", f"no engine of the pool can be asked now: {states}")


def _loggable(failure: CallFailure) -> str:
    """What a log may say of a failure: an endpoint's own words may repeat the prompt that it refuses."""
    ours = _OURS.match(failure.detail)
    return f"calls fail ({failure.kind})" if ours is None else f"calls fail ({failure.kind}: {ours[0]})"


def _key(batch: Batch) -> bytes:
    """What keeps the calls about one response together."""
    return key_of(f"{batch.system}\0{batch.shared}")
