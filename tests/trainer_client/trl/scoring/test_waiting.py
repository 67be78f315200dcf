"""A judge that is away: found out before training, waited for while training, and a checkpoint before giving up."""

import asyncio
import logging
import socket
from contextlib import ExitStack

import httpx2
import pytest

pytest.importorskip("trl")

from transformers import TrainerCallback

from tests.fixtures.ports import unused_port
from tests.services.processes import listening, without_settings
from tests.trainer_client.fake_service import FakeService, ScriptedReply, running_service
from tests.trainer_client.fake_service import problem as refusal
from tests.trainer_client.trl.judges import (
    LARGE_PROMPTS,
    FakeJudgeTransport,
    SkippingLoop,
    client,
    groups,
    obliging,
    problem,
    rewarding,
    stream,
)
from tests.trainer_client.trl.training import text_trainer
from trainer_client import AsyncClient, Client
from trainer_client.errors import AdjudgeError, ConnectionFailed, NotReady, ServerError, TimedOut
from trainer_client.trl import RubricReward, TooManyUnscored

pytestmark = pytest.mark.trl

NOT_READY = refusal("not-ready", 503, retryable=True)
ROWS = (["a", "b"], ["0.25", "0.5"])


@pytest.fixture
def loop():
    made = SkippingLoop()
    yield made
    made.close()


@pytest.fixture
def service():
    with running_service() as served:
        yield served


class TestPreflight:
    """Asking the service when the reward function is built."""

    def test_an_address_where_nothing_answers_is_refused_at_once(self, unserved_url):
        for given in (unserved_url, Client(unserved_url), AsyncClient(unserved_url)):
            with pytest.raises(ConnectionFailed, match=r"cannot reach .* or pass preflight=False"):
                RubricReward(given, "r")

    def test_it_can_be_switched_off(self, unserved_url):
        assert RubricReward(unserved_url, "r", preflight=False).mode == "weighted_mean"

    def test_a_ready_service_is_asked_once(self, service: FakeService, caplog):
        service.script(ScriptedReply(body={"checks": {"judge": True}}))
        RubricReward(service.url, "r")
        assert [request.target for request in service.asked] == ["/readyz"]
        assert not caplog.records

    def test_something_else_at_the_address_is_refused(self, service: FakeService):
        service.script(ScriptedReply(404, "<html>"))
        with pytest.raises(ServerError, match="status 404, not from Adjudge"):
            RubricReward(service.url, "r")

    def test_a_service_that_is_loading_is_waited_for(self, service: FakeService, caplog):
        service.script(NOT_READY, NOT_READY, ScriptedReply(body={}))
        slept = []
        RubricReward(Client(service.url, sleep=slept.append), "r", wait_for_judge_s=100)
        assert len(service.asked) == 3
        assert len(slept) == 2
        waiting, ready = [record.getMessage() for record in caplog.records]
        assert f"waiting up to 100 s for the judge at {service.url}: not-ready happened" in waiting
        assert "is ready after" in ready

    def test_a_service_that_stays_unready_is_refused_after_the_wait(self, service: FakeService):
        service.script(NOT_READY)
        slept = []
        with pytest.raises(NotReady, match="not-ready happened"):
            RubricReward(Client(service.url, sleep=slept.append), "r", wait_for_judge_s=100)
        assert sum(slept) <= 100

    def test_a_service_that_breaks_while_it_loads_is_waited_for(self, service: FakeService):
        service.script(NOT_READY, ScriptedReply(drop=True), ScriptedReply(body={}))
        RubricReward(Client(service.url, sleep=lambda _: None), "r")
        assert len(service.asked) == 3

    def test_a_transport_of_the_users_is_left_alone(self):
        judge = FakeJudgeTransport()
        judge.readiness = [pytest.fail]
        RubricReward(client(judge), "r")

    @pytest.mark.parametrize("seconds", [-1.0, float("nan")])
    def test_a_wait_that_is_no_time_is_refused(self, seconds):
        with pytest.raises(ValueError, match="wait_for_judge_s"):
            RubricReward(client(FakeJudgeTransport()), "r", wait_for_judge_s=seconds)


def refused(body=None):
    raise httpx2.ConnectError("refused")


def unready():
    return problem("not-ready", 503, retryable=True)


class AwayUntil(FakeJudgeTransport):
    """A judge that is away until a time of the loop, and in `again` from one time to another."""

    def __init__(self, loop, ends, *again, how=refused):
        super().__init__()
        self.loop, self.times, self.how = loop, [(0.0, ends), *again], how

    async def handle_async_request(self, request):
        if any(begins <= self.loop.time() < ends for begins, ends in self.times):
            return self.how()
        return await super().handle_async_request(request)


def on(loop, judge, **options):
    patient = client(judge, retries=0, sleep=asyncio.sleep, clock=loop.time)
    return RubricReward(patient, "r", **{"deadline_s": 5.0} | options)


@pytest.mark.parametrize(
    "how",
    [refused, unready, *(lambda status=s: httpx2.Response(status, text="no backend") for s in (502, 503, 504))],
)
def test_an_outage_of_minutes_costs_time_but_no_reward(loop, how, caplog):
    reward = on(loop, AwayUntil(loop, 400.0, how=how))
    assert loop.run_until_complete(reward(*ROWS)) == [0.25, 0.5]
    assert 400 <= loop.time() < 500
    said = [record.getMessage() for record in caplog.records]
    assert sum("waiting up to 600 s for the judge at http://judge.test: " in one for one in said) == 1
    assert any("still waiting" in one for one in said)
    assert any("is ready after" in one for one in said)


def test_a_broken_answer_is_asked_for_again_and_rows_that_arrived_are_not(loop):
    def breaks(body):
        return stream(groups(body)[0], httpx2.ReadError("reset"))

    judge = FakeJudgeTransport(breaks, refused, obliging)
    assert loop.run_until_complete(on(loop, judge)(*ROWS)) == [0.25, 0.5]
    assert [[group["prompt"] for group in asked["groups"]] for asked in judge.asked] == [["a", "b"], ["b"], ["b"]]


def test_extra_rewards_are_computed_once(loop):
    called = []

    def extra(prompts, **_):
        called.append(prompts)
        return [1.0] * len(prompts)

    reward = on(loop, AwayUntil(loop, 100.0), extra_rewards=[extra])
    assert loop.run_until_complete(reward(*ROWS)) == [1.25, 1.5]
    assert len(called) == 1


def test_after_the_wait_training_stops_with_the_reason_and_what_to_do(loop):
    reward = on(loop, AwayUntil(loop, 9999.0), wait_for_judge_s=100)
    with pytest.raises(TooManyUnscored, match=r"2 unreachable.*refused.*raise wait_for_judge_s \(100\)"):
        loop.run_until_complete(reward(*ROWS))
    assert 100 <= loop.time() < 150


def test_an_outage_is_waited_for_once_and_the_next_one_again(loop):
    reward = on(loop, AwayUntil(loop, 300.0, (400.0, 440.0)), wait_for_judge_s=100, max_unscored=1.0)

    async def train():
        steps = []
        while loop.time() < 500:
            began = loop.time()
            rewards = await reward(*ROWS)
            steps.append((rewards[0], round(loop.time() - began)))
            await asyncio.sleep(20)
        return steps

    steps = loop.run_until_complete(train())
    lost = [seconds for value, seconds in steps if value is None]
    assert lost[0] >= 100
    assert set(lost[1:]) == {0}
    waited = [seconds for value, seconds in steps if value is not None]
    assert sum(seconds > 0 for seconds in waited) == 1  # the second outage


@pytest.mark.parametrize("status", [429, 500])
def test_other_failures_are_not_waited_for(loop, status):
    judge = FakeJudgeTransport(lambda body: problem("internal", status))
    judge.readiness = [pytest.fail]
    assert loop.run_until_complete(on(loop, judge, max_unscored=1.0)(*ROWS)) == [None, None]


def test_where_failures_are_errors_a_judge_that_is_not_ready_is_waited_for_too(loop):
    reward = on(loop, AwayUntil(loop, 100.0, how=unready), on_failure="error")
    assert loop.run_until_complete(reward(*ROWS)) == [0.25, 0.5]
    gone = on(loop, AwayUntil(loop, 9999.0, how=unready), on_failure="error", wait_for_judge_s=50)
    with pytest.raises(NotReady):
        loop.run_until_complete(gone(*ROWS))


def test_after_an_error_of_one_request_all_rows_are_judged_again(loop):
    async def hang(body):
        await asyncio.Event().wait()

    judge = FakeJudgeTransport(refused, refused, lambda body: unready(), hang, obliging, obliging)
    reward = on(loop, judge, on_failure="error")
    assert loop.run_until_complete(reward(LARGE_PROMPTS, ["0.25", "0.5"])) == [0.25, 0.5]


def test_a_part_that_rewards_do_not_need_does_not_hold_them_up(loop):
    judge = FakeJudgeTransport(refused, obliging)
    judge.readiness = [unready]
    assert loop.run_until_complete(on(loop, judge)(*ROWS)) == [0.25, 0.5]
    assert loop.time() < 100


class GoingAway(FakeJudgeTransport):
    """A judge that answers so many requests, and is then away."""

    def __init__(self, answers):
        super().__init__(*[obliging] * answers, refused)
        self.readiness = [refused]


@pytest.mark.parametrize("ours", [False, True])
def test_a_checkpoint_is_saved_before_giving_up_and_can_be_resumed(tmp_path, ours):
    reward = rewarding(GoingAway(2), None, max_unscored=0.5)
    with pytest.raises(TooManyUnscored) as raised:
        text_trainer(ours, tmp_path, reward).train()
    assert any("step 2 was saved" in note for note in raised.value.__notes__)
    saved = [folder.name for folder in (tmp_path / "out").glob("checkpoint-*")]
    assert saved == ["checkpoint-2"]
    resumed = text_trainer(ours, tmp_path, rewarding(FakeJudgeTransport(), None))
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert resumed.state.global_step == 3


@pytest.mark.parametrize(("answers", "strategy"), [(0, "steps"), (1, "no")])
def test_nothing_is_saved_before_the_first_step_or_against_the_users_will(tmp_path, answers, strategy):
    reward = rewarding(GoingAway(answers), None, max_unscored=0.5)
    with pytest.raises(TooManyUnscored):
        text_trainer(True, tmp_path, reward, save_strategy=strategy).train()
    assert not list((tmp_path / "out").glob("checkpoint-*"))


def test_a_checkpoint_that_cannot_be_saved_does_not_hide_the_reason(tmp_path, caplog):
    made = text_trainer(True, tmp_path, rewarding(GoingAway(1), None, max_unscored=0.5))
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "out" / "checkpoint-1").write_text("in the way")
    with pytest.raises(TooManyUnscored):
        made.train()
    assert "step 1 could not be saved" in caplog.text


class RestartWhenMissed(logging.Handler):
    """Starts a service anew as soon as somebody waits for it."""

    def __init__(self, start):
        super().__init__(logging.WARNING)
        self.start, self.seen = start, []

    def emit(self, record):
        self.seen.append(record.getMessage())
        if "waiting up to" in self.seen[-1]:
            self.start()


class KillAfterStep(TrainerCallback):
    """Kills a service after the first step."""

    def __init__(self, service):
        self.service = service

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            self.service.process.kill()
            self.service.process.wait()


def test_training_goes_on_when_a_killed_service_is_started_again(tmp_path, monkeypatch):
    without_settings(monkeypatch)
    monkeypatch.setenv("ADJUDGE_DATA_DIR", str(tmp_path / "data"))
    port = str(unused_port())
    arguments = ("serve", "--port", port, "--engine", "scripted://yes")
    with ExitStack() as stack:
        service = stack.enter_context(listening(*arguments))
        restart = RestartWhenMissed(lambda: stack.enter_context(listening(*arguments)))
        log = logging.getLogger("trainer_client")
        log.addHandler(restart)
        stack.callback(log.removeHandler, restart)
        reward = RubricReward(
            Client(service.url, retries=0), [{"id": "a", "description": "Is good."}], wait_for_judge_s=300
        )  # the judge may still be loading
        made = text_trainer(True, tmp_path, reward)
        made.add_callback(KillAfterStep(service))
        made.train()
        assert made.state.global_step == 3
        assert all(row.reward is not None for row in made.rubric_reward.last.rows)
        assert any("is ready after" in one for one in restart.seen)
    unscored = [row["rubric/unscored"] for row in made.state.log_history if "rubric/unscored" in row]
    assert unscored == [0.0, 0.0, 0.0]


def test_a_host_that_takes_connections_and_says_nothing_is_refused():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(TimedOut, match="preflight=False"):
            RubricReward(Client(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2), "r")


def test_the_reason_of_not_being_ready_is_the_error_itself(service: FakeService):
    service.script(NOT_READY)
    with Client(service.url) as asking:
        reason = asking.not_ready_reason()
        assert isinstance(reason, AdjudgeError)
        assert "not-ready happened" in str(reason)
        assert asking.ready() is False
        service.script(ScriptedReply(body={}))
        assert asking.not_ready_reason() is None
