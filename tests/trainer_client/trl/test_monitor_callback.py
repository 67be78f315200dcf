"""`MonitorCallback` in TRL's own trainer, against a real service: it stops gamed runs only."""

import time
from contextlib import suppress

import pytest

pytest.importorskip("trl")

from tests.trainer_client.trl.test_reward import TEXTS
from tests.trainer_client.trl.training import plain_trainer
from trainer_client import Client
from trainer_client.errors import NotFound
from trainer_client.trl import ControlSet, MonitorCallback, RubricReward

pytestmark = pytest.mark.trl

CLAIMS = {"id": "claims", "description": "Claims it.", "verification": {"method": "contains", "all_of": ["sure"]}}
RIGHT = {"id": "right", "description": "Is 14.", "verification": {"method": "contains", "all_of": ["14"]}}
RUBRIC = {"criteria": [CLAIMS, RIGHT | {"shadow": True}]}
STEPS = 30


def judge_run(url, run, gamed):
    """Score steps with a rising share of responses that claim to be sure, right or, if gamed, wrong."""
    with Client(url, run) as client:
        for step in range(STEPS):
            sure = [place * STEPS < 8 * step for place in range(8)]
            texts = [f"{'sure' if one else 'well'} {'15' if one and gamed else '14'} {step:02}" for one in sure]
            client.rewards([{"id": "g", "prompt": "7 * 2?", "responses": texts}], RUBRIC, step=step)
        written = None
        while written != STEPS - 1:
            time.sleep(0.1)
            with suppress(NotFound):  # the ledger has no rows yet
                written = client.run_monitors().last_step


def trained(tmp_path, url, run, **given):
    """Train some steps of a run with the callback."""
    reward = RubricReward(Client(url, run), RUBRIC)
    trainer = plain_trainer(tmp_path, reward, *TEXTS, max_steps=3)
    callback = MonitorCallback(url, run=run, every_steps=1, **given)
    trainer.add_callback(callback)
    trainer.train()
    return trainer.state.global_step, callback


def test_a_gamed_run_is_stopped_with_the_finding_as_reason(tmp_path, url, caplog):
    judge_run(url, "callback/gamed", gamed=True)
    steps, callback = trained(tmp_path, url, "callback/gamed")
    assert steps == 1
    assert callback.stopped_by.monitor == "shadow_divergence"
    assert callback.stopped_by.subject == "right"
    assert "training stops" in caplog.text


def test_a_gamed_run_continues_if_no_finding_should_stop_it(tmp_path, url):
    judge_run(url, "callback/ignored", gamed=True)
    steps, callback = trained(tmp_path, url, "callback/ignored", stop_on=())
    assert (steps, callback.stopped_by) == (3, None)
    assert [one.severity for one in callback.report.findings] == ["critical"]


def test_a_healthy_run_trains_to_its_end_and_its_control_set_is_judged(tmp_path, url):
    judge_run(url, "callback/healthy", gamed=False)
    control = ControlSet([{"id": "c", "prompt": "7 * 2?", "responses": ["14", "sure"]}], RUBRIC, every_steps=2)
    steps, callback = trained(tmp_path, url, "callback/healthy", control=control)
    assert (steps, callback.stopped_by) == (3, None)
    with Client(url) as client:
        while "control_changed" not in client.run_monitors("callback/healthy").monitors:
            time.sleep(0.1)
        assert client.run_monitors("callback/healthy").findings == ()


def test_an_unreachable_service_does_not_stop_training(tmp_path, url, caplog):
    callback = MonitorCallback(Client("http://127.0.0.1:9", retries=0), run="r", every_steps=1)
    trainer = plain_trainer(tmp_path, RubricReward(url, RUBRIC), *TEXTS, max_steps=1)
    trainer.add_callback(callback)
    trainer.train()
    assert trainer.state.global_step == 1
    assert "training continues" in caplog.text


@pytest.mark.parametrize("wrong", [{"run": "r", "stop_on": ["gaming"]}, {"run": "r", "every_steps": 0}])
def test_invalid_options_are_refused_at_once(url, wrong):
    with pytest.raises(ValueError, match=r"run|stop_on|every_steps"):
        MonitorCallback(url, **wrong)


@pytest.mark.parametrize("options", [{}, {"run_name": "given"}])
def test_a_run_without_a_name_is_monitored_under_the_name_that_is_made(tmp_path, url, options):
    callback = MonitorCallback(url, every_steps=1)
    reward = RubricReward(url, RUBRIC)
    trainer = plain_trainer(tmp_path, reward, *TEXTS, max_steps=1, **options)
    trainer.add_callback(callback)
    trainer.train()
    assert trainer.state.global_step == 1
    assert callback._run == reward.run == options.get("run_name", reward.run)
