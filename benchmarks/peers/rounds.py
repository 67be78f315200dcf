"""Rounds in which every contender takes its turn, so that all share the machine's moods; and one round with faults."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from rich.console import Console
from rich.progress import Progress

from benchmarks.peers.contenders import Contender, Terms, started
from benchmarks.peers.driving import Pass, Took
from benchmarks.peers.processes import Driver, NotHere
from benchmarks.peers.tally import Tally, tally
from benchmarks.peers.underneath import Counts, Underneath

WARM_RESPONSES = 2
PATIENCE_S = 3600.0


@dataclass(frozen=True)
class Turn:
    """A contender's turn of a round: fresh responses, the same again, and fresh ones a few at a time to time each.

    The last two are left out where a model would take too long over them.
    """

    first: Took
    counts: Counts
    second: Took | None
    timed: Took | None


@dataclass(frozen=True)
class Fate:
    """What became of a contender's judgements under faults."""

    tally: Tally
    counts: Counts
    took: Took


async def start(
    stack: AsyncExitStack, contenders: Sequence[Contender], terms: Terms, sets: Iterator[int], *, warm: bool = True
) -> dict[str, Driver]:
    """Start every contender that is here, and warm it up if wanted; who is not here is named with the reason."""
    drivers = {}
    for contender in contenders:
        try:
            running = await stack.enter_async_context(started(contender, terms))
        except NotHere as reason:
            Console(soft_wrap=True).print(f"[bold yellow]SKIPPED[/] {contender.name}: {reason}", highlight=False)
            continue
        drivers[contender.name] = running
        if warm:
            took = await running.take(Pass(next(sets), WARM_RESPONSES), PATIENCE_S)
            if took.broke is not None or all(isinstance(score, str) for scores in took.scores for score in scores):
                raise RuntimeError(f"{contender.name} cannot judge: {took.broke or took.scores}")
    return drivers


async def speed(
    under: Underneath, contenders: Sequence[Contender], terms: Terms, responses: int, rounds: int, *, whole: bool
) -> dict[str, list[Turn]]:
    """Each contender's turns, one of each round. Only `whole` turns are warmed up for and have all their passes."""
    sets = itertools.count(1000)
    async with AsyncExitStack() as stack:
        drivers = await start(stack, contenders, terms, sets, warm=whole)
        turns: dict[str, list[Turn]] = {name: [] for name in drivers}
        order = list(drivers)
        with Progress(transient=True) as bar:
            task = bar.add_task("turns", total=rounds * len(drivers))
            for _ in range(rounds):
                for name in order:
                    bar.update(task, description=name)
                    turns[name].append(await _turn(under, drivers[name], sets, responses, whole=whole))
                    bar.advance(task)
                order = order[1:] + order[:1]
    return turns


async def _turn(under: Underneath, running: Driver, sets: Iterator[int], responses: int, *, whole: bool) -> Turn:
    fresh = next(sets)
    await under.begin()
    first = await running.take(Pass(fresh, responses), PATIENCE_S)
    counts = await under.counts()
    second = await running.take(Pass(fresh, responses), PATIENCE_S) if whole else None
    slowly = await running.take(Pass(next(sets), responses, timed=True), PATIENCE_S) if whole else None
    for took in (first, second, slowly):
        if took is not None and took.broke is not None:
            raise RuntimeError(f"a pass without faults broke: {took.broke}")
    return Turn(first, counts, second, slowly)


async def faults(
    under: Underneath, contenders: Sequence[Contender], terms: Terms, responses: int, **wrong: float
) -> dict[str, Fate]:
    """One pass of each contender over a server of which things go wrong, the same for each."""
    sets, fates = itertools.count(9000), {}
    judgements = responses * terms.criteria
    with Progress(transient=True) as bar:
        for contender in bar.track(contenders, description="contenders under faults"):
            async with AsyncExitStack() as stack:
                await under.begin()
                running = (await start(stack, [contender], terms, sets)).get(contender.name)
                if running is None:
                    continue
                fresh = next(sets)
                await under.begin(restart_at=judgements // 2, **wrong)
                took = await running.take(Pass(fresh, responses), PATIENCE_S)
                counts = await under.counts()
                fates[contender.name] = Fate(tally(took, fresh, judgements, counts.answered), counts, took)
    return fates
