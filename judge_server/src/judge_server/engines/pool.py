"""Several engines of one model as one engine: a response's calls stay together, and faults move them on.

Which member a batch goes to is the pool's to say (`judge_server.pools`); how one is started is `pool_member`'s. What is
here: which outcomes are asked again of another member, and what a member's breaker is told.
"""

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any

from judge_server.engines.pool_member import KeptEngine, difference
from judge_server.errors import EngineAway, EngineGone, EngineStartError
from judge_server.pools import Breaker, Member, MemberGone, MemberView, Pool, key_of
from judge_server.ports import Batch, CallFailed, Engine, EngineIdentity, Reply

log = logging.getLogger("adjudge")

START_PATIENCE_S = 30.0
"""How long the others may still take once one has started; what takes longer joins when it is up."""

_ASKED_AGAIN = frozenset({"engine", "overloaded"})
_ITS_OWN_FAULT = frozenset({"engine", "timeout"})
_SILENT = CallFailed("engine", "the engine ended a batch without an answer to this call")
_OURS = re.compile(r"HTTP \d{3}|no answer from \S+[^\s:]|the endpoint sent nothing for \S+ s")


class EnginePool:
    """Engines by name; each is made by a function, since one that was away is made anew.

    `every_s` seconds lie between two looks at a member's health; `options` are those of `Pool`.
    """

    dead = ""
    concurrent_calls = None  # a member has places of its own, which a batch of another member leaves free

    def __init__(
        self,
        engines: Mapping[str, Callable[[], Engine]],
        *,
        clock: Callable[[], float] = time.monotonic,
        every_s: float = 2.0,
        start_patience_s: float = START_PATIENCE_S,
        **options: Any,
    ) -> None:
        kept = {
            name: KeptEngine(name, make, Breaker(clock, failures=1, pause_s=every_s)) for name, make in engines.items()
        }
        self._pool = Pool(kept, self._healthy, clock=clock, every_s=every_s, **options)
        self._start_patience_s = start_patience_s
        self._identity: EngineIdentity | None = None

    def members(self) -> list[MemberView]:
        """Each member's name, state, and calls under way."""
        return [member.view for member in self._pool.members]

    @property
    def capacity(self) -> int:
        """How many batches those that are up take together at this moment."""
        return sum(member.of.batches for member in self._pool.members if not member.gone.is_set())

    async def start(self) -> EngineIdentity:
        """Start all at once; one is enough, and the others join as they come up.

        The identity's `concurrent_batches` is the sum over those that have started.

        Raises:
            EngineAway: none has started, with each one's reason, and all may come later: try again.
            EngineStartError: none has started, and one of them never will; or two are not the same judge.
        """
        starting = {asyncio.create_task(member.of.start()): member.of for member in self._pool.members}
        pending = set(starting)
        identities: dict[str, EngineIdentity] = {}
        try:
            while pending:
                patience = self._start_patience_s if identities else None
                done, pending = await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                for task in done:
                    if (identity := task.result()) is not None:
                        identities[starting[task].name] = identity
        finally:
            for task in pending:
                task.cancel()
        self._identity = identity = self._agreed(identities)
        for member in self._pool.members:
            if member.name in identities:
                member.of.accept(identities[member.name])
            else:
                member.lose(member.of.why)
        self._pool.start()
        return identity

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailed]]:
        """Answer by the member that the batch's shared text belongs to.

        Calls that it fails, refuses or leaves out, or that hang when it is found gone, are asked of the next member,
        of each at most once.
        """
        key = _key(batch)
        left = dict(enumerate(batch.calls))
        failed: dict[int, CallFailed] = {}
        tried: set[str] = set()
        while left and (member := self._pool.choose(key, len(left), without=tried)) is not None:
            tried.add(member.name)
            places = list(left)
            part = replace(batch, calls=tuple(left.values()))
            with self._pool.held(member, len(places)):
                asking = self._ask(member, part)
                try:
                    async for place, outcome in asking:
                        index = places[place]
                        if isinstance(outcome, CallFailed) and outcome.kind in _ASKED_AGAIN:
                            failed[index] = outcome
                        else:
                            del left[index]
                            yield index, outcome
                finally:
                    await asking.aclose()
        for index in left:
            yield index, failed.get(index) or self._nobody()

    async def count_tokens(self, batch: Batch) -> int:
        """Counted by the first available member that can; raises `EngineGone` where none can."""
        why = self._nobody().detail
        for member in self._pool.in_order(_key(batch)):
            try:
                async with member.present():
                    return await member.of.engine.count_tokens(batch)
            except (EngineGone, MemberGone) as error:
                why = str(error)
        raise EngineGone(why)

    async def ready(self) -> bool:
        """Whether any member could answer a batch now."""
        available = [member for member in self._pool.members if member.available]
        return any(await asyncio.gather(*(member.of.engine.ready() for member in available)))

    async def close(self) -> None:
        """Release all members; calls in flight fail."""
        await self._pool.close()
        await asyncio.gather(*(member.of.close() for member in self._pool.members))

    async def _ask(
        self, member: Member[KeptEngine], batch: Batch
    ) -> AsyncGenerator[tuple[int, Reply | CallFailed], None]:
        """One member's outcomes, one for each call, and its breaker is told how it did last."""
        left = set(range(len(batch.calls)))
        answers = member.of.engine.answer(batch)
        last: Reply | CallFailed | None = None
        why = _SILENT
        try:
            while left:
                async with member.present():
                    place, outcome = await anext(answers)
                last = outcome
                member.answers += isinstance(outcome, Reply)
                left.discard(place)
                yield place, outcome
        except StopAsyncIteration:
            last = why
        except MemberGone:
            why = CallFailed("engine", f"{member.name} was found gone before it answered")
        except Exception as error:
            log.exception("%s broke off a batch of %d calls", member.name, len(batch.calls))
            last = why = CallFailed("engine", f"{member.name} broke off: {type(error).__name__}; the log says more")
        finally:
            if (close := getattr(answers, "aclose", None)) is not None:
                await close()
            if isinstance(last, Reply):
                member.succeeded()
            elif last is not None and last.kind in _ITS_OWN_FAULT:
                member.failed(_loggable(last))
        for place in sorted(left):
            yield place, why

    async def _healthy(self, kept: KeptEngine) -> bool:
        """Whether a member is well; one that is gone is started until it is up and the same judge as the others."""
        if kept.up and not self._pool.member(kept.name).gone.is_set():
            return await kept.engine.ready()
        kept.up = False
        told = kept.why
        identity = await kept.start()
        if identity is None:
            return False
        assert self._identity is not None
        if not (differs := difference(identity, self._identity)):
            kept.accept(identity)
            return True
        why = f"it came back as another judge: {differs}"
        if why != told:
            log.warning("%s stays out of the pool: %s", kept.name, why)
        kept.refuse(why)
        return False

    def _agreed(self, identities: Mapping[str, EngineIdentity]) -> EngineIdentity:
        """What all that have started are together."""
        if not identities:
            whys = "; ".join(f"{member.name}: {member.of.why}" for member in self._pool.members)
            refusal = EngineAway if all(member.of.away for member in self._pool.members) else EngineStartError
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

    def _nobody(self) -> CallFailed:
        states = ", ".join(f"{view.name} is {view.state}" for view in self.members())
        return CallFailed("engine", f"no engine of the pool can be asked now: {states}")


def _loggable(failure: CallFailed) -> str:
    """What a log may say of a failure: an endpoint's own words may repeat the prompt that it refuses."""
    ours = _OURS.match(failure.detail)
    return f"calls fail ({failure.kind})" if ours is None else f"calls fail ({failure.kind}: {ours[0]})"


def _key(batch: Batch) -> bytes:
    """What keeps the calls about one response together."""
    return key_of(f"{batch.system}\0{batch.shared}")
