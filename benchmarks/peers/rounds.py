"""Rounds in which the contenders take turns, so that changes of the machine's speed affect all; a round with faults."""

import itertools
from collections.abc import Iterator, Sequence, Set
from contextlib import AsyncExitStack
from dataclasses import dataclass

from rich.console import Console
from rich.progress import Progress

from benchmarks.peers.backends import Backend, ServerCounters
from benchmarks.peers.contenders import PeerConfig, Terms, started
from benchmarks.peers.driving import Pass, PassResult
from benchmarks.peers.processes import Driver, PeerUnavailable
from benchmarks.peers.worksheets import pair, truth

WARM_RESPONSES = 2
PASS_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class RoundResult:
    """A contender's turn in a round: new responses, the same again, and new ones a few at a time for their latency.

    The last two are None if they would take a real model too long.
    """

    first: PassResult
    counts: ServerCounters
    second: PassResult | None
    timed: PassResult | None


@dataclass(frozen=True)
class JudgementCounts:
    """Counts of a pass's judgements.

    `made_up` counts scores without a verdict of the server, or that differ from its verdict. `lost` counts judgements
    that came back neither as a score nor as a failure, since the whole pass failed.
    """

    right: int
    failed: int
    made_up: int
    lost: int


@dataclass(frozen=True)
class FaultResult:
    """The outcome of a contender's judgements under faults."""

    tally: JudgementCounts
    counts: ServerCounters
    took: PassResult


async def start(
    stack: AsyncExitStack, contenders: Sequence[PeerConfig], terms: Terms, sets: Iterator[int], *, warm: bool = True
) -> dict[str, Driver]:
    """Start every available contender, and warm it up if `warm`; report the others with the reason."""
    drivers = {}
    for contender in contenders:
        try:
            running = await stack.enter_async_context(started(contender, terms))
        except PeerUnavailable as reason:
            Console(soft_wrap=True).print(f"[bold yellow]SKIPPED[/] {contender.name}: {reason}", highlight=False)
            continue
        drivers[contender.name] = running
        if warm:
            took = await running.run_pass(Pass(next(sets), WARM_RESPONSES), PASS_TIMEOUT_S)
            if took.error is not None or all(isinstance(score, str) for scores in took.scores for score in scores):
                raise RuntimeError(f"{contender.name} cannot judge: {took.error or took.scores}")
    return drivers


async def speed(
    backend: Backend, contenders: Sequence[PeerConfig], terms: Terms, responses: int, rounds: int, *, whole: bool
) -> dict[str, list[RoundResult]]:
    """Measure the turns of each contender, one per round. Only with `whole` are there a warm-up and all passes."""
    sets = itertools.count(1000)
    async with AsyncExitStack() as stack:
        drivers = await start(stack, contenders, terms, sets, warm=whole)
        turns: dict[str, list[RoundResult]] = {name: [] for name in drivers}
        order = list(drivers)
        with Progress(transient=True) as bar:
            task = bar.add_task("turns", total=rounds * len(drivers))
            for _ in range(rounds):
                for name in order:
                    bar.update(task, description=name)
                    turns[name].append(await _turn(backend, drivers[name], sets, responses, whole=whole))
                    bar.advance(task)
                order = order[1:] + order[:1]
    return turns


async def _turn(backend: Backend, running: Driver, sets: Iterator[int], responses: int, *, whole: bool) -> RoundResult:
    fresh = next(sets)
    await backend.begin()
    first = await running.run_pass(Pass(fresh, responses), PASS_TIMEOUT_S)
    counts = await backend.counts()
    second = await running.run_pass(Pass(fresh, responses), PASS_TIMEOUT_S) if whole else None
    slowly = await running.run_pass(Pass(next(sets), responses, timed=True), PASS_TIMEOUT_S) if whole else None
    for took in (first, second, slowly):
        if took is not None and took.error is not None:
            raise RuntimeError(f"a pass without faults failed: {took.error}")
    return RoundResult(first, counts, second, slowly)


async def faults(
    backend: Backend, contenders: Sequence[PeerConfig], terms: Terms, responses: int, **wrong: float
) -> dict[str, FaultResult]:
    """Run one pass of each contender with a faulty server; the faults are the same for each."""
    sets, results = itertools.count(9000), {}
    judgements = responses * terms.criteria
    with Progress(transient=True) as bar:
        for contender in bar.track(contenders, description="contenders under faults"):
            async with AsyncExitStack() as stack:
                await backend.begin()
                running = (await start(stack, [contender], terms, sets)).get(contender.name)
                if running is None:
                    continue
                fresh = next(sets)
                await backend.begin(restart_at=judgements // 2, **wrong)
                took = await running.run_pass(Pass(fresh, responses), PASS_TIMEOUT_S)
                counts = await backend.counts()
                results[contender.name] = FaultResult(tally(took, fresh, judgements, counts.answered), counts, took)
    return results


def tally(took: PassResult, set_number: int, judgements: int, answered: Set[str]) -> JudgementCounts:
    """Compare a contender's scores with the scripted server's verdicts."""
    right = failed = made_up = 0
    for number, scores in enumerate(took.scores):
        for criterion, score in enumerate(scores):
            judged = pair(f"{set_number}-{number}", criterion)
            if isinstance(score, str):
                failed += 1
            elif judged in answered and (score >= 0.5) is truth(judged):
                right += 1
            else:
                made_up += 1
    return JudgementCounts(right, failed, made_up, judgements - right - failed - made_up)
