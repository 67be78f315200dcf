"""An api with judges in other processes judges like one with a local judge, and tolerates their faults."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.errors import EngineStartError, EngineUnavailable, NotReady, Overloaded
from judge_server.judging.questions import JudgingConfig
from judge_server.judging.results import Caller, Outcomes, collect
from judge_server.ports import Batch, Call, CallFailure, EngineIdentity, JudgeResult, Reply
from judge_server.remote.executor import (
    JudgeClient,
    JudgeUnavailable,
    JudgeWaits,
    ProtocolMismatch,
    RemoteExecutor,
    identity_digest,
)
from judge_server.remote.messages import PROTOCOL_VERSION, ShardRequest
from judge_server.scheduling.pools import PoolRules
from judge_server.scoring.cache import MemoryCache
from judge_server.scoring.judge import Judge
from tests.judge_server.remote.judges import TOKEN, api_of, judges
from tests.judge_server.support import (
    CRITERIA,
    GatedEngine,
    RecordingScript,
    criteria,
    deadline_after,
    group,
    judge,
    plan,
    plans,
)
from trainer_client.wire import Criterion

RUBRIC = [Criterion.model_validate(criterion) for criterion in CRITERIA]
AB = criteria("Alpha.", "Beta.")
TWELVE = criteria(*[f"Part {n} holds." for n in range(12)])
RESPONSES = [f"Response {n}." for n in range(24)]


class CountingEngine(ScriptedEngine):
    """Answers by hash, and counts its calls."""

    def __init__(self) -> None:
        self.asked = RecordingScript()
        super().__init__(self.asked)


class HalfAnsweringEngine(ScriptedEngine):
    """Answers the first half of each batch and never the rest."""

    def __init__(self) -> None:
        super().__init__(concurrent_batches=100)
        self.asked: Counter[tuple[str, str]] = Counter()
        self.answered: Counter[tuple[str, str]] = Counter()
        self.in_flight = 0
        self.busy = asyncio.Event()

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """As `ScriptedEngine`, for the first half."""
        for index, call in enumerate(batch.calls):
            self.asked[batch.shared, call.question] += 1
            if index >= len(batch.calls) // 2:
                self.in_flight += len(batch.calls) - index
                self.busy.set()
                await asyncio.Event().wait()
            self.answered[batch.shared, call.question] += 1
            yield index, by_hash(batch, call)


def other_model() -> ScriptedEngine:
    """An engine of another model."""

    class OtherModelEngine(ScriptedEngine):
        async def start(self) -> EngineIdentity:
            return replace(await super().start(), model="another")

    return OtherModelEngine()


def failures(outcomes: Outcomes) -> Counter[str]:
    return Counter(o.kind for o in outcomes.by_digest.values() if isinstance(o, CallFailure))


@pytest.mark.parametrize(
    "config",
    [
        JudgingConfig("binary"),
        JudgingConfig("stepwise"),
        JudgingConfig("graded"),
        JudgingConfig("checklist", per_call="all"),
        JudgingConfig("likert"),
    ],
    ids=str,
)
async def test_outcomes_equal_those_of_a_local_judge(config: JudgingConfig) -> None:
    own = await judge()
    async with judges(None, None) as served, api_of(*served) as api:
        assert api.identity == own.identity
        asked = [plan(api.prepared(config), group(r), r, RUBRIC) for r in RESPONSES]
        there, here = (
            await collect(api.judge(asked, await deadline_after())),
            await collect(own.judge(asked, await deadline_after())),
        )
        assert there.by_digest == here.by_digest
        assert (there.costs.calls, there.checks) == (here.costs.calls, here.checks)
        assert there.costs.tokens_computed > 0
        assert await api.executor.count_tokens(asked[0].batch) == await own.executor.count_tokens(asked[0].batch)


async def test_each_responses_calls_go_to_one_judge_and_both_judges_get_some() -> None:
    engines = [CountingEngine(), CountingEngine()]
    async with judges(*engines) as served, api_of(*served) as api:
        await collect(api.judge(plans(api, *RESPONSES, of=TWELVE), await deadline_after()))
        metrics = [one.judge.metrics for one in served]
        calls = [sum(engine.asked.asked.values()) for engine in engines]
    assert sum(calls) == len(RESPONSES) * len(TWELVE)
    assert all(number % len(TWELVE) == 0 and number > 0 for number in calls)
    assert len(metrics) == 2


async def test_concurrent_equal_requests_of_two_apis_are_judged_once() -> None:
    engine = GatedEngine(concurrent_batches=100)
    async with judges(engine, None) as served, api_of(served[0]) as one, api_of(served[0]) as other:
        asked = plans(one, "Yes.", of=AB)
        first = asyncio.create_task(collect(one.judge(asked, await deadline_after())))
        await engine.busy()
        second = asyncio.create_task(collect(other.judge(asked, await deadline_after())))
        while served[0].judge.executor.admission.limits.held < 2:  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        engine.release(10)
        a, b = await first, await second
    assert a.by_digest == b.by_digest
    assert len(engine.began) == a.costs.calls + b.costs.calls == 2
    assert (len(a.joined), len(b.joined) + len(b.cached)) == (0, 2)


async def test_results_cached_by_a_judge_are_not_asked_again_and_marked_as_cached() -> None:
    engine = CountingEngine()
    async with judges(engine) as served, api_of(*served) as api:
        asked = plans(api, "Yes.", of=AB)
        await collect(api.judge(asked, await deadline_after()))
        again = await collect(api.judge(asked, await deadline_after()))
    assert (again.costs.calls, len(again.cached)) == (0, 2)
    assert set(engine.asked.asked.values()) == {1}


async def test_a_response_is_reported_as_soon_as_it_is_done() -> None:
    engine = GatedEngine(concurrent_batches=1)
    async with judges(engine) as served, api_of(*served) as api:
        judging = api.judge(plans(api, "Yes.", "No.", of=AB), await deadline_after())
        engine.release(2)
        first = await asyncio.wait_for(anext(judging), 10)
        assert len(first.complete) == 1
        engine.release(2)
        rest = [place async for judged in judging for place in judged.complete]
        assert {*first.complete, *rest} == {0, 1}


async def test_at_the_deadline_finished_calls_are_returned_and_the_rest_time_out() -> None:
    engine = GatedEngine(concurrent_batches=1)
    async with judges(engine) as served, api_of(*served) as api:
        engine.release(1)
        outcomes = await collect(api.judge(plans(api, "Yes.", of=AB), await deadline_after(1.5)))
    assert sum(isinstance(o, JudgeResult) for o in outcomes.by_digest.values()) == 1
    assert failures(outcomes) == {"timeout": 1}


async def test_a_cancelled_request_frees_the_judges_queue() -> None:
    engine = GatedEngine(concurrent_batches=1)
    async with judges(engine) as served, api_of(*served) as api:
        waiting = asyncio.create_task(collect(api.judge(plans(api, *RESPONSES, of=AB), await deadline_after())))
        await engine.busy()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        limits = served[0].judge.executor.admission.limits  # type: ignore[attr-defined]
        async with asyncio.timeout(10):
            while limits.held:  # noqa: ASYNC110 - no event to await
                await asyncio.sleep(0.01)


async def test_a_full_queue_refuses_the_request_with_a_retry_after() -> None:
    engine = GatedEngine(concurrent_batches=1)
    async with judges(engine, queue_calls=10) as served, api_of(*served) as api:
        first = asyncio.create_task(
            collect(api.judge(plans(api, *RESPONSES[:5], of=AB), await deadline_after(), caller=Caller("a")))
        )
        await engine.busy()
        with pytest.raises(Overloaded) as refused:
            await collect(api.judge(plans(api, *RESPONSES[5:], of=AB), await deadline_after(), caller=Caller("a")))
        assert refused.value.retry_after_s
        engine.release(10)
        assert not failures(await first)


async def test_a_judge_that_dies_midway_loses_only_the_calls_in_flight() -> None:
    dying, other = HalfAnsweringEngine(), CountingEngine()
    async with judges(dying, other) as served, api_of(*served) as api:
        asked = plans(api, *RESPONSES, of=TWELVE)
        outcomes = Outcomes()
        judging = api.judge(asked, await deadline_after(), tick_s=0.01)
        async with asyncio.timeout(20):
            while not dying.busy.is_set() or len(outcomes.by_digest) < (
                dying.answered.total() + other.asked.asked.total()
            ):
                outcomes.add((await anext(judging)).outcomes)
        finished = dict(outcomes.by_digest)
        await served[0].stop()
        outcomes.add(await collect(judging))
    assert len(outcomes.by_digest) == len(RESPONSES) * len(TWELVE)
    assert not failures(outcomes)
    assert finished.items() <= outcomes.by_digest.items()
    assert dying.in_flight > 0
    assert dying.answered.total() + other.asked.asked.total() == len(RESPONSES) * len(TWELVE)


async def test_a_judge_that_stops_working_is_detected_and_its_calls_go_to_the_other() -> None:
    hanging, other = HalfAnsweringEngine(), CountingEngine()
    async with judges(hanging, other) as served, api_of(*served) as api:
        waiting = asyncio.create_task(collect(api.judge(plans(api, *RESPONSES, of=TWELVE), await deadline_after())))
        await hanging.busy.wait()
        served[0].process.judge = None  # it answers that it cannot judge
        outcomes = await asyncio.wait_for(waiting, 30)
    assert not failures(outcomes)
    assert len(outcomes.by_digest) == len(RESPONSES) * len(TWELVE)


async def test_without_any_judge_requests_are_refused_as_retryable_and_answered_once_one_is_back() -> None:
    async with judges(None) as served, api_of(*served, retry_window_s=0.3) as api:
        asked = plans(api, "Yes.", of=AB)
        assert await api.executor.should_receive_traffic()
        await served[0].stop()
        with pytest.raises(NotReady, match="no judge is available") as refused:
            await collect(api.judge(asked, await deadline_after()))
        assert refused.value.retry_after_s
        assert not await api.executor.ready()
        assert await api.executor.should_receive_traffic()
        with pytest.raises(EngineUnavailable):
            await api.executor.count_tokens(asked[0].batch)
        await served[0].start()
        async with asyncio.timeout(10):
            while not await api.executor.ready():  # noqa: ASYNC110 - no event to await
                await asyncio.sleep(0.01)
        assert not failures(await collect(api.judge(asked, await deadline_after())))


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "loading again"])
async def test_where_no_judge_could_take_the_calls_the_request_is_refused_instead_of_failing_verdicts(
    gone: bool,
) -> None:
    async with judges(None) as served:
        links, rules = [JudgeClient(served[0].url, TOKEN)], PoolRules(interval_s=3600.0)
        api = Judge(RemoteExecutor(links, rules, waits=JudgeWaits(retry_window_s=0.3)), MemoryCache())
        await api.start()
        if gone:
            await served[0].stop()
        else:
            served[0].process.judge = None
        with pytest.raises(NotReady, match="no judge is available"):
            await collect(api.judge(plans(api, "Yes.", of=AB), await deadline_after()))
        await api.close()


async def test_calls_taken_by_a_judge_that_went_away_are_held_until_a_judge_is_back() -> None:
    engine = GatedEngine()
    async with judges(engine) as served, api_of(*served, retry_window_s=0.3) as api:
        waiting = asyncio.create_task(collect(api.judge(plans(api, "Yes.", of=AB), await deadline_after())))
        await engine.busy()
        await served[0].stop()
        await asyncio.sleep(1.0)  # longer than calls wait that no judge has taken
        assert not waiting.done()
        engine.gate = asyncio.Semaphore(100)
        await served[0].start()
        outcomes = await waiting
    assert not failures(outcomes)
    assert len(outcomes.by_digest) == 2


async def test_a_judge_that_is_back_gets_the_whole_request_and_not_only_the_breakers_trial() -> None:
    engine = GatedEngine()
    async with judges(engine) as served:
        links, rules = [JudgeClient(served[0].url, TOKEN)], PoolRules(interval_s=3600.0)
        executor = RemoteExecutor(links, rules, waits=JudgeWaits(retry_window_s=0.3))
        api = Judge(executor, MemoryCache())
        await api.start()
        await served[0].stop()
        while executor.members()[0].state == "closed":
            with pytest.raises(NotReady):
                await collect(api.judge(plans(api, "Yes.", of=AB), await deadline_after()))
        while executor.members()[0].state != "half_open":  # noqa: ASYNC110 - a breaker has no event
            await asyncio.sleep(0.01)
        await served[0].start()
        waiting = asyncio.create_task(collect(api.judge(plans(api, *RESPONSES, of=AB), await deadline_after())))
        await engine.busy()
        await asyncio.sleep(0.6)  # longer than calls wait that no judge has taken
        assert not waiting.done()
        engine.release(1000)
        outcomes = await waiting
        await api.close()
    assert not failures(outcomes)
    assert len(outcomes.by_digest) == len(RESPONSES) * len(AB)


async def test_calls_of_a_judge_that_never_returns_and_sent_no_result_fail() -> None:
    engine = GatedEngine()
    async with judges(engine) as served, api_of(*served, max_hold_s=0.3) as api:
        waiting = asyncio.create_task(collect(api.judge(plans(api, "Yes.", of=AB), await deadline_after())))
        await engine.busy()
        await served[0].stop()
        assert failures(await waiting) == {"engine": 2}


async def test_calls_of_a_judge_that_never_returns_fail_and_the_results_it_sent_are_kept() -> None:
    dying = HalfAnsweringEngine()
    async with judges(dying) as served, api_of(*served, max_hold_s=0.3) as api:
        waiting = asyncio.create_task(collect(api.judge(plans(api, "Yes.", of=TWELVE), await deadline_after())))
        await dying.busy.wait()
        await asyncio.sleep(0.5)  # longer than a judge takes to send its results
        await served[0].stop()
        outcomes = await waiting
    assert failures(outcomes) == {"engine": 6}
    assert len(outcomes.by_digest) == 12


async def test_an_api_that_has_not_found_a_judge_receives_no_traffic() -> None:
    executor = RemoteExecutor([JudgeClient("http://127.0.0.1:1", TOKEN)], PoolRules(interval_s=0.05))
    assert not await executor.should_receive_traffic()
    await executor.close()


async def test_a_judge_of_another_model_is_left_out() -> None:
    engine = CountingEngine()
    async with judges(engine, other_model()) as served, api_of(*served) as api:
        async with asyncio.timeout(20):
            while "gone" not in [member.state for member in api.executor.members()]:  # noqa: ASYNC110 - no event to await
                await asyncio.sleep(0.01)
        models = {one.identity.model for one in (served[0].judge, served[1].judge)}
        assert models == {api.identity.model, *models}
        assert [member.state for member in api.executor.members()].count("gone") == 1
        outcomes = await collect(api.judge(plans(api, *RESPONSES, of=AB), await deadline_after()))
        assert not failures(outcomes)


async def test_an_api_with_the_wrong_token_does_not_start_and_names_the_setting() -> None:
    async with judges(None) as served:
        with pytest.raises(EngineStartError, match="ADJUDGE_JUDGE_TOKEN"):
            async with api_of(*served, token="a guess"):
                pass


async def test_an_api_whose_judges_all_speak_another_protocol_says_so_and_waits_for_matching_ones() -> None:
    async with judges(None, None) as served:
        for one in served:
            one.process.protocol = PROTOCOL_VERSION + 1
        executor = RemoteExecutor(
            [JudgeClient(one.url, TOKEN) for one in served], PoolRules(interval_s=0.05, health_timeout_s=0.5)
        )
        api = Judge(executor, MemoryCache())
        assert executor.unavailable_reason == ""
        starting = asyncio.create_task(api.start())
        async with asyncio.timeout(10):
            while not executor.unavailable_reason:  # noqa: ASYNC110 - no event to await
                await asyncio.sleep(0.01)
        theirs = f"every judge speaks protocol {PROTOCOL_VERSION + 1} and this api {PROTOCOL_VERSION}"
        assert executor.unavailable_reason == f"{theirs}; it waits for judges of its own version"
        assert not await executor.should_receive_traffic()
        assert not starting.done()
        for one in served:
            one.process.protocol = PROTOCOL_VERSION
        await asyncio.wait_for(starting, 10)
        assert executor.unavailable_reason == ""
        assert await executor.should_receive_traffic()
        assert not failures(await collect(api.judge(plans(api, "Yes.", of=AB), await deadline_after())))
        await api.close()


async def test_judges_of_another_protocol_are_left_out_and_calls_go_to_the_others() -> None:
    engine = CountingEngine()
    async with judges(engine, None) as served, api_of(*served) as api:
        for one in served:
            one.process.protocol = PROTOCOL_VERSION + 1
        link = JudgeClient(served[0].url, TOKEN)
        with pytest.raises(
            ProtocolMismatch, match=f"speaks protocol {PROTOCOL_VERSION + 1} and this api {PROTOCOL_VERSION}"
        ):
            await link.handshake()
        asking = ShardRequest.of([], Caller("r"), identity_digest(api.identity), 5.0)
        with pytest.raises(
            JudgeUnavailable, match=f"this judge speaks protocol {PROTOCOL_VERSION + 1}, not {PROTOCOL_VERSION}"
        ):
            [line async for line in link.ask(asking)]
        await link.close()
        async with asyncio.timeout(10):
            while await api.executor.should_receive_traffic():  # noqa: ASYNC110 - no event to await
                await asyncio.sleep(0.01)
    assert not engine.asked.asked


async def test_a_failed_call_is_still_a_failure_after_passing_through_an_api() -> None:
    def script(batch: Batch, call: Call) -> Reply | CallFailure:
        return CallFailure("truncated_input", "too long") if "Beta" in call.question else by_hash(batch, call)

    async with judges(ScriptedEngine(script)) as served, api_of(*served) as api:
        outcomes = await collect(api.judge(plans(api, "Yes.", of=AB), await deadline_after()))
    assert failures(outcomes) == {"truncated_input": 1}
