"""A trainer's measures on the page of its run: refinements, scaffolds and gates, over a real service."""

import asyncio
import json
import threading
import time

import httpx2
import pytest

from tests.trainer_client.trl.generating import Prompts, batch
from tests.trainer_client.trl.judges import FakeJudgeTransport, accept_measures, problem, rewarding
from tests.trainer_client.trl.methods.test_dro import ANSWER, TEXTS
from tests.trainer_client.trl.training import PLAIN, RIGHT, SLIP, WRONG, dataset, trainer
from trainer_client import Client
from trainer_client.trl import RubricReward
from trainer_client.trl.rollouts.measure_reports import MeasureReporter

pytestmark = pytest.mark.trl

FACTUAL = [{**criterion, "kind": "factual" if criterion["id"] == "answer" else "process"} for criterion in PLAIN]
NEVER = {**ANSWER[0], "id": "never", "verification": {"method": "contains", "all_of": ["never said"]}}
METHODS = {
    "rgr": ((WRONG, SLIP, WRONG, WRONG), dataset(FACTUAL), {"length_penalty": None}, {"rgr/refined": 0.25}),
    "ruscarl": (
        (RIGHT, WRONG),
        dataset(PLAIN),
        {"pattern": "binary", "full": 2, "decay": "constant", "weights": False},
        {"scaffold/prompts": 0.5, "scaffold/too_long": 0.0},
    ),
    "dro": (
        TEXTS,
        dataset([*ANSWER, NEVER], reference_answer=["Final answer: 14"] * 2),
        {"variance_filter": False, "p_min": 0.0, "p_max": 1.0},
        {"dro/accepted": 0.0, "dro/coverage": 1.0, "dro/no_answer": 0.25},
    ),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_runs_page_shows_the_measures_of_its_method(tmp_path, url, method):
    texts, data, options, expected = METHODS[method]
    run = f"measured/{method}"
    made = trainer(
        tmp_path, url, data=data, method=method, method_options=options, reward=RubricReward(Client(url, run)),
        max_steps=2, mask_truncated_completions=False,
    )  # fmt: skip
    made.model.config.max_position_embeddings = 2048
    made.rollout_func = Prompts(*texts, later=(RIGHT,) if method == "rgr" else None)
    made.train()
    logged = {name: [row[name] for row in made.state.log_history if name in row] for name in expected}
    while httpx2.get(page := f"{url}/console/run?run={run}").status_code == 404:  # until the run is in the ledger
        time.sleep(0.1)
    assert "What the trainer reports" in httpx2.get(page).text
    text = httpx2.get(f"{url}/console/run/measures.csv", params={"run": run, "first": 0, "last": 1}).text
    lines = [line.split(",") for line in text.splitlines()[1:]]
    reported = {name: [float(mean) for one, _, _, mean in lines if one == name] for name in expected}
    assert {name: values[0] for name, values in reported.items()} == pytest.approx(expected)
    assert reported == {name: pytest.approx(values) for name, values in logged.items()}


def test_a_refused_report_is_a_warning_and_training_continues(tmp_path, caplog):
    judge = FakeJudgeTransport()
    judge.measures = lambda body: problem("not-found", 404)
    made = trainer(
        tmp_path, "", reward=rewarding(judge, {"criteria": PLAIN}, mode="graded_mean"), texts=("1", "0"), max_steps=2
    )
    made.train()
    assert made.state.global_step == 2
    assert caplog.text.count("measures of training were not reported, and training continues") == 1
    assert [json.loads(body)["step"] for body in judge.reported] == [0, 1]


class HeldReports:
    """Answers reports once they are released, and records which were answered and which cancelled."""

    def __init__(self):
        self.answered, self.cancelled = [], []
        self.asked, self.released = threading.Event(), asyncio.Event()

    async def __call__(self, body):
        step = json.loads(body)["step"]
        self.asked.set()
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled.append(step)
            raise
        self.answered.append(step)
        return accept_measures(body)


@pytest.fixture
def held():
    return HeldReports()


@pytest.fixture
def reporting(tmp_path, held):
    """Build a trainer whose reports are held, with these further reward functions."""

    def build(*rewards, **given):
        judge = FakeJudgeTransport()
        judge.measures = held
        reward = rewarding(judge, {"criteria": PLAIN}, mode="graded_mean")
        return trainer(tmp_path, "", reward=reward, rewards=rewards, texts=("1", "0"), **given)

    return build


def test_the_end_of_training_waits_for_every_report(reporting, held):
    made = reporting()
    with (reporter := MeasureReporter(made)):
        for step in range(3):
            made.state.global_step = step
            reporter.report({"refined": 0.5})
        made.async_loop.call_soon_threadsafe(held.released.set)
    assert sorted(held.answered) == [0, 1, 2]
    assert not asyncio.all_tasks(made.async_loop)


def test_a_report_that_takes_too_long_is_cancelled_with_a_warning(reporting, held, caplog):
    made = reporting()
    with (reporter := MeasureReporter(made, end_wait_s=0.0)):
        reporter.report({"refined": 0.5})
        assert held.asked.wait(60.0)
    assert (held.answered, held.cancelled) == ([], [0])
    assert caplog.text.count("the last measures of the run were not reported") == 1
    assert not asyncio.all_tasks(made.async_loop)


def test_an_interrupted_training_leaves_no_report_under_way(reporting, held):
    def interrupted(prompts, trainer_state, **_):
        if trainer_state.global_step == 1:
            assert held.asked.wait(60.0)
            raise KeyboardInterrupt
        return [0.0] * len(prompts)

    made = reporting(interrupted, max_steps=2)
    with pytest.raises(KeyboardInterrupt):
        made.train()
    assert (held.answered, held.cancelled) == ([], [0])
    assert not asyncio.all_tasks(made.async_loop)


def test_a_batch_outside_of_training_is_not_reported(reporting, held):
    made = reporting()
    batch(made)
    assert not asyncio.all_tasks(made.async_loop)
    assert (held.answered, held.cancelled) == ([], [])
