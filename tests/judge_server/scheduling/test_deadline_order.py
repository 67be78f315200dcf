"""Under a deadline, a run finishes the responses it has begun first, so that verdicts become rewards."""

import asyncio
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server.engines.common import RunningCalls
from judge_server.engines.scripted import CAPABILITIES, ScriptedEngine, by_hash
from judge_server.judging.plan import ResponsePlan
from judge_server.judging.questions import JudgingConfig
from judge_server.judging.results import Caller, collect
from judge_server.ports import Batch, Call, CallFailure, JudgeResult, Reply, TokenChoice
from judge_server.scheduling.admission import QueueRules
from judge_server.scoring.judge import Judge
from tests.fixtures.virtual_time import run_in_virtual_time
from tests.hypothesis_examples import examples
from tests.judge_server.support import criteria, group, judge, plan

ALONE, TOGETHER = JudgingConfig("binary"), JudgingConfig("binary", "all")


class UnevenEngine(ScriptedEngine):
    """Works on `places` calls at a time, each of which takes between 0.1 and 1 seconds.

    With `first_alone`, the first call of a batch is answered before the others begin. `unreadable` tenths of the
    calls about several criteria get unreadable answers.
    """

    def __init__(self, places: int, *, first_alone: bool = False, unreadable: int = 0) -> None:
        able = replace(CAPABILITIES, prefix_in_flight=not first_alone)
        super().__init__(concurrent_batches=places, capabilities=able)
        self._calls = RunningCalls()
        self._free = asyncio.Semaphore(places)
        self._unreadable = unreadable

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """As `ScriptedEngine`, in the order in which calls complete."""
        alone = 0 if self._capabilities.prefix_in_flight else min(1, len(batch.calls))
        for wave in (range(alone), range(alone, len(batch.calls))):
            async with aclosing(self._calls.answers({n: self._reply(batch, batch.calls[n]) for n in wave})) as answers:
                async for answer in answers:
                    yield answer

    async def _reply(self, batch: Batch, call: Call) -> Reply | CallFailure:
        draw = zlib.crc32(f"{batch.shared}{call.question}".encode())
        async with self._free:
            await asyncio.sleep(0.1 * (1 + draw % 10))
        if not isinstance(call.answer, TokenChoice) and draw // 10 % 10 < self._unreadable:
            return Reply(text="I would rather not.")
        return by_hash(batch, call)


@dataclass
class DeadlineResult:
    """A run at its deadline: responses with all their verdicts, responses with some, and verdicts."""

    whole: int = 0
    begun: int = 0
    verdicts: int = 0


async def cut_off(
    made: Judge, sizes: dict[str, list[int]], deadline: float, config: JudgingConfig = ALONE
) -> dict[str, DeadlineResult]:
    """Judge several runs at once until the deadline; `sizes` holds the criteria of each response of each run."""
    asked: dict[str, list[ResponsePlan]] = {
        run: [
            plan(made.prepared(config), group(), f"{run} {place}", criteria(*map(str, range(size))))
            for place, size in enumerate(of)
        ]
        for run, of in sizes.items()
    }
    outcomes = await asyncio.gather(
        *(collect(made.judge(of, deadline, caller=Caller(run))) for run, of in asked.items())
    )
    left: defaultdict[str, DeadlineResult] = defaultdict(DeadlineResult)
    for (run, plans), found in zip(asked.items(), outcomes, strict=True):
        for one in plans:
            verdicts = sum(isinstance(found.by_digest[digest], JudgeResult) for digest in one.digests)
            left[run].verdicts += verdicts
            left[run].whole += verdicts == len(one.digests)
            left[run].begun += 0 < verdicts < len(one.digests)
    await made.close()
    return left


def cut_off_in_virtual_time(
    engine: ScriptedEngine, sizes: dict[str, list[int]], deadline: float, config: JudgingConfig = ALONE
) -> dict[str, DeadlineResult]:
    """`cut_off` with this engine, `deadline` virtual seconds after the start."""

    async def run() -> dict[str, DeadlineResult]:
        return await cut_off(await judge(engine, rules=QueueRules()), sizes, deadline, config)

    return run_in_virtual_time(run())


def test_every_verdict_made_before_the_deadline_belongs_to_a_complete_response() -> None:
    engine = ScriptedEngine(delay_s=0.4, concurrent_batches=4)
    left = cut_off_in_virtual_time(engine, {"a": [4] * 40}, 3.0)["a"]
    assert (left.verdicts, left.whole, left.begun) == (28, 7, 0)


SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=12)


@given(
    st.dictionaries(st.sampled_from("abc"), SIZES, min_size=1),
    st.integers(1, 6),
    st.floats(0.1, 12.0),
    st.booleans(),
)
@settings(max_examples=examples(40), deadline=None)
def test_at_any_deadline_no_more_responses_are_unfinished_than_calls_are_running(
    sizes: dict[str, list[int]], places: int, deadline: float, first_alone: bool
) -> None:
    left = cut_off_in_virtual_time(UnevenEngine(places, first_alone=first_alone), sizes, deadline)
    assert sum(run.begun for run in left.values()) <= places


@given(SIZES, st.integers(1, 6), st.floats(0.1, 12.0))
@settings(max_examples=examples(40), deadline=None)
def test_a_response_whose_calls_go_together_begins_only_in_places_left_by_earlier_ones(
    sizes: list[int], places: int, deadline: float
) -> None:
    left = cut_off_in_virtual_time(UnevenEngine(places), {"a": [6] * len(sizes)}, deadline)["a"]
    assert left.begun <= 1 + places // 2


@given(SIZES, st.integers(1, 4), st.floats(0.1, 12.0), st.integers(1, 5))
@settings(max_examples=examples(40), deadline=None)
def test_calls_that_are_repeated_go_before_another_response_is_begun(
    sizes: list[int], places: int, deadline: float, unreadable: int
) -> None:
    engine = UnevenEngine(places, unreadable=unreadable)
    left = cut_off_in_virtual_time(engine, {"a": [2 + size for size in sizes]}, deadline, TOGETHER)["a"]
    assert left.begun <= places


def test_an_engine_that_omits_criteria_leaves_no_response_unfinished_at_the_deadline() -> None:
    def leaves_one_out(batch: Batch, call: Call) -> Reply:
        if isinstance(call.answer, TokenChoice):
            return by_hash(batch, call)
        return Reply(text='{"verdicts": [{"id": 1, "satisfied": true}]}')

    engine = ScriptedEngine(leaves_one_out, delay_s=1.0, concurrent_batches=1)
    left = cut_off_in_virtual_time(engine, {"a": [2] * 20}, 10.5, TOGETHER)["a"]
    assert (left.whole, left.begun) == (5, 0)
