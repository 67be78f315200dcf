"""Weights that change while a judge runs: over the real scheduler, at its edges, and on servers like vLLM's."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.engines.pool import EnginePool
from judge_server.engines.scripted import ScriptedEngine
from judge_server.errors import CannotLoad, EngineUnavailable, NotReady, WeightsChanged
from judge_server.judging.calibration import StoredCalibration
from judge_server.judging.combining import Band, CascadeRule
from judge_server.judging.questions import JudgingConfig
from judge_server.ports import Adapter, Batch, CallFailure, Engine, EngineIdentity, Reply
from judge_server.scheduling.executor import LocalExecutor
from judge_server.scheduling.pools import PoolRules
from judge_server.scheduling.sleep import Lease
from judge_server.scheduling.weights import WeightsOrder, WeightsReport
from judge_server.scoring.cache import MemoryCache
from judge_server.scoring.combined import CombinedJudge
from judge_server.scoring.judge import Judge
from judge_server.scoring.scorer import Scorer
from tests.fixtures.virtual_time import run_in_virtual_time
from tests.judge_server.calibrations import CALIBRATION
from tests.judge_server.support import GatedEngine, request
from trainer_client.wire import RewardAnswer, RewardRequest


class ChangingEngine(ScriptedEngine):
    """Takes time to load, fails when it is told to, and notes a change of weights below calls.

    Attributes:
        failing: what each load does in turn: `refuse` keeps the weights, `break` leaves it open which there are.
        violations: loads while calls were under way, and calls while it loaded.
        calls: how many calls it has answered.
    """

    def __init__(self, *, failing: Sequence[str] = (), load_s: float = 0.5, delay_s: float = 0.2) -> None:
        super().__init__(delay_s=delay_s, concurrent_batches=2)
        self.failing = list(failing)
        self.violations: list[str] = []
        self.calls = 0
        self._load_s = load_s
        self._under_way = 0
        self._loading = False

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """As `ScriptedEngine`."""
        self._under_way += 1
        self.calls += len(batch.calls)
        if self._loading:
            self.violations.append("a call while it loads")
        try:
            async for answer in super().answer(batch):
                yield answer
        finally:
            self._under_way -= 1

    async def load(self, adapter: Adapter | None, version: str) -> EngineIdentity:
        """As `ScriptedEngine`, after a while."""
        if self._under_way:
            self.violations.append("loaded below a call")
        self._loading = True
        await asyncio.sleep(self._load_s)
        self._loading = False
        what = self.failing.pop(0) if self.failing else ""
        if what == "refuse":
            raise CannotLoad("the adapter does not suit the model")
        if what == "break":
            await super().load(None, version)
            raise EngineUnavailable("its process died")
        return await super().load(adapter, version)


def adapters(folder: Path, *names: str) -> Path:
    """A folder with these adapters; what a name holds before a dash is its content."""
    for name in names:
        (folder / name).write_text(name.partition("-")[0])
    return folder


async def started(engine: Engine, folder: Path | None) -> Judge:
    """A started judge over this engine, which loads adapters from the folder."""
    clock = asyncio.get_running_loop().time
    made = Judge(LocalExecutor(engine, adapters=folder, clock=clock), MemoryCache(clock=clock), clock=clock)
    await made.start()
    return made


async def reward(made: Judge | CombinedJudge, *responses: str, deadline_s: float = 60.0) -> RewardAnswer:
    """The answer to a request for rewards."""
    scorer = Scorer(made, None)  # type: ignore[arg-type]  # rubrics are inline
    asked = RewardRequest.model_validate(request(*responses, deadline_s=deadline_s))
    return await scorer.score(asked, request_id="r", project_id="p")


def probabilities(answer: RewardAnswer) -> list[float | None]:
    """The probabilities in an answer."""
    return [one.probability for group in answer.groups for response in group.responses for one in response.verdicts]


class Ask(NamedTuple):
    """A request with this response."""

    response: str
    deadline_s: float


Event = tuple[float, Ask | WeightsOrder]
WEIGHTS = (None, "a", "b")
RESPONSES = [f"Response {n}." for n in range(6)]


async def play(engine: ChangingEngine, folder: Path, events: Sequence[Event]) -> list[tuple[str, RewardAnswer]]:
    """The answers to the requests among these events, with the response that each was about."""
    made = await started(engine, folder)
    answers = []

    async def one(at: float, what: Ask | WeightsOrder) -> None:
        await asyncio.sleep(at)
        with suppress(NotReady, CannotLoad):
            if isinstance(what, WeightsOrder):
                await made.executor.load(what)
            else:
                answers.append((what.response, await reward(made, what.response, deadline_s=what.deadline_s)))

    await asyncio.gather(*(one(at, what) for at, what in events))
    await made.close()
    return answers


async def known_answers(folder: Path) -> dict[tuple[str, str], list[float | None]]:
    """What each response gets under each of the weights, by the judge's fingerprint."""
    known = {}
    for adapter in WEIGHTS:
        made = await started(ChangingEngine(load_s=0, delay_s=0), folder)
        await made.executor.load(WeightsOrder("v", adapter))
        for response in ("R1.", "R2.", "R3."):
            answer = await reward(made, response)
            known[response, answer.judge.fingerprint] = probabilities(answer)
        await made.close()
    return known


moments = st.integers(0, 40).map(lambda tenths: tenths / 10)
asks = st.builds(Ask, st.sampled_from(["R1.", "R2.", "R3."]), st.sampled_from([0.1, 1.0, 5.0, 60.0]))
orders = st.tuples(st.sampled_from(WEIGHTS), st.sampled_from([0.1, 1.0, 60.0])).map(
    lambda drawn: WeightsOrder("v", drawn[0], wait_s=drawn[1])
)


@given(
    events=st.lists(st.tuples(moments, st.one_of(asks, orders)), max_size=14),
    failing=st.lists(st.sampled_from(["", "refuse", "break"]), max_size=4),
)
def test_a_request_is_judged_by_one_version_and_filed_under_it(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event], failing: list[str]
) -> None:
    folder = adapters(tmp_path_factory.mktemp("adapters"), "a", "b")
    known = run_in_virtual_time(known_answers(folder))
    assert len({tuple(given) for given in known.values()}) > 3
    engine = ChangingEngine(failing=failing)
    for response, answer in run_in_virtual_time(play(engine, folder, events)):
        expected = known[response, answer.judge.fingerprint]
        for got, right in zip(probabilities(answer), expected, strict=True):
            assert got in (None, right)
    assert engine.violations == []


async def test_calls_in_the_queue_are_judged_before_the_change_and_new_requests_after_it(tmp_path: Path) -> None:
    engine = GatedEngine(concurrent_batches=1)
    made = await started(engine, adapters(tmp_path, "a"))
    first, queued = [asyncio.create_task(reward(made, response)) for response in ("R1.", "R2.")]
    await engine.busy()
    loading = asyncio.create_task(made.executor.load(WeightsOrder("v", "a")))
    await asyncio.sleep(0.05)
    later = asyncio.create_task(reward(made, "R2."))
    hopeless = asyncio.create_task(reward(made, "R3.", deadline_s=0.05))
    with pytest.raises(NotReady, match="loading other weights"):
        await hopeless
    assert not loading.done()
    engine.release(100)
    assert (await first).judge == (await queued).judge
    assert (await later).judge.model == (await loading).model != (await queued).judge.model
    assert (await later).judge.fingerprint != (await queued).judge.fingerprint
    await made.close()


async def test_equal_content_shares_the_cache_and_other_content_never_does(tmp_path: Path) -> None:
    engine = ChangingEngine(load_s=0, delay_s=0)
    made = await started(engine, adapters(tmp_path, "a", "a-copied", "b"))
    base = await reward(made, "R1.")
    assert (await reward(made, "R1.")).usage.cached == len(probabilities(base))
    tags = set()
    for adapter, cached in (("a", False), ("a-copied", True), ("b", False), ("a", True), (None, True)):
        report = await made.executor.load(WeightsOrder(f"version of {adapter}", adapter, 7))
        answer = await reward(made, "R1.")
        assert answer.usage.cached == (len(probabilities(base)) if cached else 0)
        assert report == WeightsReport(answer.judge.model, report.tag, f"version of {adapter}", adapter, 7)
        tags.add(report.tag)
    assert probabilities(answer) == probabilities(base)
    assert answer.judge.fingerprint == base.judge.fingerprint
    assert len(tags) == 3
    await made.close()


async def test_a_load_that_is_refused_leaves_the_weights_before(tmp_path: Path) -> None:
    made = await started(ChangingEngine(failing=["", "refuse"], load_s=0), adapters(tmp_path, "a", "b"))
    await made.executor.load(WeightsOrder("one", "a"))
    before = await reward(made, "R1.")
    with pytest.raises(CannotLoad, match="does not suit"):
        await made.executor.load(WeightsOrder("two", "b"))
    assert made.executor.weights.version == "one"
    assert (await reward(made, "R1.")).judge == before.judge
    await made.close()


async def test_a_judge_with_unknown_weights_gets_no_calls_until_a_load_succeeds(tmp_path: Path) -> None:
    engine = ChangingEngine(failing=["break"], load_s=0, delay_s=0)
    made = await started(engine, adapters(tmp_path, "a", "b"))
    with pytest.raises(NotReady, match=r"not known which weights.*its process died.*Load weights again"):
        await made.executor.load(WeightsOrder("one", "a"))
    for _ in range(2):
        with pytest.raises(NotReady, match="not known which weights"):
            await reward(made, "R1.")
    assert (engine.calls, await made.executor.ready(), "not known" in made.executor.unavailable_reason) == (
        0,
        False,
        True,
    )
    await made.executor.load(WeightsOrder("two", "b"))
    assert (await made.executor.ready(), made.executor.unavailable_reason) == (True, "")
    assert None not in probabilities(await reward(made, "R1."))
    await made.close()


async def test_a_change_gives_up_on_requests_that_do_not_end_and_the_judge_goes_on(tmp_path: Path) -> None:
    engine = GatedEngine(concurrent_batches=1)
    made = await started(engine, adapters(tmp_path, "a"))
    first = asyncio.create_task(reward(made, "R1."))
    await engine.busy()
    with pytest.raises(NotReady, match="keeps its weights: 1 requests under way"):
        await made.executor.load(WeightsOrder("v", "a", wait_s=0.05))
    later = asyncio.create_task(reward(made, "R2."))
    engine.release(100)
    assert (await first).judge == (await later).judge
    assert made.executor.weights.version is None
    await made.close()


async def test_two_trainers_notice_each_other_and_a_repeated_order_is_no_conflict(tmp_path: Path) -> None:
    made = await started(ChangingEngine(load_s=0), adapters(tmp_path, "a", "b"))
    start = made.executor.weights.tag
    mine = WeightsOrder("mine", "a", expected=start)
    done = await asyncio.gather(
        made.executor.load(mine),
        made.executor.load(WeightsOrder("theirs", "b", expected=start)),
        return_exceptions=True,
    )
    assert [type(one) for one in done] == [WeightsReport, WeightsChanged]
    assert (await made.executor.load(mine)).version == "mine"
    await made.close()


async def test_a_sleeping_judge_loads_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    made = await started(ChangingEngine(load_s=0), adapters(tmp_path, "a"))
    await made.executor.hold(Lease("x", "asleep", 60))
    with pytest.raises(CannotLoad, match="asleep; wake it"):
        await made.executor.load(WeightsOrder("v", "a"))
    await made.executor.hold(Lease("x", "awake", 60))
    loading = asyncio.create_task(made.executor.load(WeightsOrder("v", "a")))
    falling = asyncio.create_task(made.executor.hold(Lease("x", "asleep", 60)))
    results = await asyncio.gather(loading, falling, return_exceptions=True)
    assert isinstance(results[0], WeightsReport | CannotLoad)
    assert made.executor.sleep_state == "asleep"
    await made.close()


async def test_only_adapters_in_the_folder_are_loaded(tmp_path: Path) -> None:
    inside = tmp_path / "adapters"
    inside.mkdir()
    adapters(tmp_path, "secret")
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "empty").mkdir()
    made = await started(ChangingEngine(load_s=0), inside)
    for name in ("../secret", str(tmp_path / "secret"), "link", ".", "", "a/../../secret"):
        with pytest.raises(CannotLoad, match="not in ADJUDGE_ADAPTERS_DIR"):
            await made.executor.load(WeightsOrder("v", name))
    for name in ("missing", "empty", "missing/\0"):
        with pytest.raises(CannotLoad, match=r"cannot be read|not in ADJUDGE_ADAPTERS_DIR"):
            await made.executor.load(WeightsOrder("v", name))
    await made.close()
    without = await started(ChangingEngine(load_s=0), None)
    with pytest.raises(CannotLoad, match="set ADJUDGE_ADAPTERS_DIR"):
        await without.executor.load(WeightsOrder("v", "a"))
    await without.close()


async def test_a_folder_is_told_by_its_two_files(tmp_path: Path) -> None:
    for name, weights in (("one", "x"), ("two", "x"), ("three", "y")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text("{}")
        (tmp_path / name / "adapter_model.safetensors").write_text(weights)
        (tmp_path / name / "README.md").write_text(name)
    made = await started(ChangingEngine(load_s=0), tmp_path)
    one, two, three = [(await made.executor.load(WeightsOrder("v", name))).tag for name in ("one", "two", "three")]
    assert one == two != three
    await made.close()


async def test_a_stored_calibration_of_other_weights_is_refused_and_named(tmp_path: Path) -> None:
    made = await started(ChangingEngine(load_s=0, delay_s=0), adapters(tmp_path, "a"))
    config = JudgingConfig("binary")
    fitted = StoredCalibration(
        name="mine",
        version=1,
        judge=made.prepared(config).uncalibrated,
        model="scripted",
        config=config.recorded(),
        method="platt",
        calibration=CALIBRATION,
    )
    made.stored_calibrations = [fitted]
    assert made.refused_calibrations() == []
    calibrated = await reward(made, "R1.")
    await made.executor.load(WeightsOrder("v", "a"))
    assert made.refused_calibrations() == ["mine@1"]
    with pytest.raises(Exception, match="mine@1 does not hold"):
        await reward(made, "R1.")
    await made.executor.load(WeightsOrder("base"))
    assert (await reward(made, "R1.")).judge == calibrated.judge
    await made.close()


async def test_a_cascade_waits_for_its_members_weights_and_has_none_of_its_own(tmp_path: Path) -> None:
    folder = adapters(tmp_path, "a")
    small, large = [await started(ChangingEngine(load_s=0.05, delay_s=0.01), folder) for _ in range(2)]
    rule = CascadeRule(Band(0.0, 1.0))
    cascade = CombinedJudge({"small": small, "large": large}, "cascade", rule)
    other_way = CombinedJudge({"large": large, "small": small}, "cascade", rule)
    with pytest.raises(CannotLoad, match="load the weights of one of these"):
        await cascade.executor.load(WeightsOrder("v", "a"))
    before = await reward(cascade, "R1.")
    answers = await asyncio.gather(
        *(reward(judge, f"R{n}.", deadline_s=20) for n in range(8) for judge in (cascade, other_way)),
        small.executor.load(WeightsOrder("v", "a")),
        large.executor.load(WeightsOrder("v", "a")),
    )
    assert all(None not in probabilities(one) for one in answers if isinstance(one, RewardAnswer))
    after = await reward(cascade, "R1.")
    assert after.judge.fingerprint != before.judge.fingerprint
    assert cascade.executor.weights.tag.count("+") == 1
    await asyncio.gather(small.close(), large.close())


def pool_of(*engines: ChangingEngine) -> EnginePool:
    """A pool of these engines, which are made again when they have been down."""
    rules = PoolRules(interval_s=0.02)
    return EnginePool({f"member-{n}": lambda one=one: one for n, one in enumerate(engines)}, rules)  # type: ignore[misc]


async def test_a_pool_loads_on_every_endpoint_or_on_none(tmp_path: Path) -> None:
    one, two = [ChangingEngine(load_s=0, delay_s=0) for _ in range(2)]
    made = await started(pool := pool_of(one, two), adapters(tmp_path, "a", "b"))
    base = await reward(made, *RESPONSES)
    await made.executor.load(WeightsOrder("one", "a"))
    before = await reward(made, *RESPONSES)
    assert probabilities(before) != probabilities(base)
    two.failing = ["refuse"]
    with pytest.raises(CannotLoad, match="member-1: the adapter does not suit"):
        await made.executor.load(WeightsOrder("two", "b"))
    again = await reward(made, *RESPONSES, "One more.")
    assert (again.judge, again.usage.judge_calls > 0) == (before.judge, True)
    assert [member.state for member in pool.members()] == ["closed", "closed"]
    one.failing, two.failing = ["break"], ["break"]
    with pytest.raises(NotReady, match=r"not known which weights.*member-0.*member-1"):
        await made.executor.load(WeightsOrder("two", "b"))
    await made.close()


async def test_an_endpoint_that_was_down_comes_back_with_the_weights_of_the_others(tmp_path: Path) -> None:
    one, two = [ChangingEngine(load_s=0, delay_s=0) for _ in range(2)]
    made = await started(pool := pool_of(one, two), adapters(tmp_path, "a"))
    await two.close()
    async with asyncio.timeout(30):
        while [member.state for member in pool.members()].count("closed") == 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    report = await made.executor.load(WeightsOrder("one", "a"))
    expected = await reward(made, *RESPONSES)
    async with asyncio.timeout(30):
        while [member.state for member in pool.members()] != ["closed", "closed"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await one.close()
    later = await reward(made, *[f"{response} " for response in RESPONSES])
    assert later.judge.model == report.model
    assert later.judge == expected.judge
    await made.close()
