"""Rubrics that evolve during training, on all ranks at one step, and across checkpoints."""

import json
import logging
import os
import subprocess
import sys

import pytest

from tests.fixtures.ports import unused_port
from tests.services.processes import ready_service
from tests.trainer_client.trl.evolving_writer import CRITERIA, evolving_writer
from tests.trainer_client.trl.training import dataset, policy, trainer
from trainer_client import Client
from trainer_client.trl import EvolvingFailed, EvolvingRubrics, GenerationCallback, RubricReward

pytestmark = pytest.mark.trl

SETTINGS = {
    "method": "rubric", "num_generations": 8, "per_device_train_batch_size": 8, "max_completion_length": 8,
    "optim": "adamw_torch", "learning_rate": 1e-2,
}  # fmt: skip
"""Eight responses, since the judge's hashes of fewer may all agree, and a new criterion would not discriminate."""

PARAMETERS = {"validity": False}


@pytest.fixture(scope="module")
def writer():
    with evolving_writer() as model:
        yield model


@pytest.fixture(scope="module")
def evolving_url(writer, tmp_path_factory):
    """The address of a service with a writer model."""
    folder = tmp_path_factory.mktemp("evolving")
    with ready_service("scripted://hash", folder, ADJUDGE_WRITER_URL=writer.url) as service:
        yield service.url


class RubricVersionCallback(GenerationCallback):
    """Record the rubric version of the first response in each batch."""

    def __init__(self):
        self.judged = []

    def on_scored(self, generation):
        self.judged.append(generation.reward.pinned(generation.reward.last.rows[0].rubric))
        return {}


def data_of(url, name, prompts):
    """Prompts with a separate rubric each."""
    names = [f"{name}/{n}" for n in range(prompts)]
    with Client(url) as client:
        for one in names:
            client.publish_rubric(one, CRITERIA)
    return names, dataset(prompts=prompts, rubric=names)


def evolving(folder, url, data, *, every_n_steps=2, service=None, mode="graded_mean", rubric=None, more=None, **given):
    callback = EvolvingRubrics(service or url, every_n_steps=every_n_steps, parameters=PARAMETERS, **(more or {}))
    reward = RubricReward(url, rubric, mode=mode)
    made = trainer(folder, url, data=data, reward=reward, **{**SETTINGS, **given})
    watched = RubricVersionCallback()
    made.add_callback(watched)
    made.add_callback(callback)
    return made, watched


def test_rubrics_evolve_every_n_steps_and_apply_from_the_next_step_on(tmp_path, evolving_url):
    (name,), data = data_of(evolving_url, "steps", 1)
    made, watched = evolving(tmp_path, evolving_url, data, max_steps=5)
    made.train()
    assert watched.judged == [f"{name}@{version}" for version in (1, 1, 2, 2, 3)]
    logged = [row for row in made.state.log_history if "evolving/evolved" in row]
    assert [(row["step"], row["evolving/groups"], row["evolving/evolved"]) for row in logged] == [(2, 1, 1), (4, 1, 1)]
    with Client(evolving_url) as client:
        history = list(client.rubric_history(name))
    assert [(one.version, one.parent) for one in history] == [(3, 2), (2, 1), (1, None)]
    assert [one.lineage.parameters["training_step"] for one in history[:2]] == [4, 2]


def test_a_resumed_run_evolves_rubrics_seen_before_its_checkpoint_too(tmp_path, evolving_url, writer):
    names, _ = data_of(evolving_url, "resumed", 3)
    with Client(evolving_url) as client:
        for name in names:
            client.move_alias(name, "start", 1, expected=None)
    references = [f"{name}@start" for name in names]
    data = dataset(prompts=3, rubric=references)
    saved = {"max_steps": 4, "save_steps": 2, "save_strategy": "steps", "every_n_steps": 3}
    whole, judged = evolving(tmp_path, evolving_url, data, **saved)
    whole.train()
    asked, pins = list(writer.questions)[-3:], whole.rubric_reward.state()["pins"]
    assert pins == {f"{name}@start": f"{name}@2" for name in names}
    kept = json.loads((tmp_path / "out" / "checkpoint-2" / "adjudge_state.json").read_text())
    assert sorted(one["reference"] for one in kept["callbacks"]["EvolvingRubrics"]["groups"]) == references[:2]
    again, rejudged = evolving(tmp_path, evolving_url, data, **saved)
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert sorted(writer.questions[-3:]) == sorted(asked)
    assert again.rubric_reward.state()["pins"] == pins
    assert rejudged.judged == judged.judged[2:]


def test_a_run_resumed_after_its_rubrics_evolved_uses_the_evolved_ones(tmp_path, evolving_url):
    (name,), data = data_of(evolving_url, "later", 1)
    saved = {"save_steps": 2, "save_strategy": "steps"}
    evolving(tmp_path, evolving_url, data, max_steps=2, **saved)[0].train()
    again, watched = evolving(tmp_path, evolving_url, data, max_steps=3, **saved)
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert watched.judged == [f"{name}@2"]


def test_a_rubric_shared_by_several_prompts_stays_unchanged(tmp_path, evolving_url):
    with Client(evolving_url) as client:
        client.publish_rubric("shared", CRITERIA)
    data = dataset(prompts=2).remove_columns("rubric")
    made, watched = evolving(tmp_path, evolving_url, data, rubric="shared", max_steps=3)
    made.train()
    assert watched.judged == ["shared@1"] * 3
    assert [row["evolving/unchanged/shared"] for row in made.state.log_history if "evolving/groups" in row] == [1]


def test_inline_rubrics_of_the_dataset_are_reported_as_not_evolving(tmp_path, evolving_url, caplog):
    made, _ = evolving(tmp_path, evolving_url, dataset([*CRITERIA]), max_steps=1, every_n_steps=1)
    made.callback_handler.remove_callback(RubricVersionCallback)
    made.train()
    assert caplog.text.count("no rubric of this batch can evolve") == 1
    assert made.state.log_history[0]["evolving/groups"] == 0


def test_training_continues_if_the_service_does_not_answer(tmp_path, evolving_url, caplog):
    caplog.set_level(logging.WARNING)
    (name,), data = data_of(evolving_url, "away", 1)
    away = Client(f"http://127.0.0.1:{unused_port()}", retries=0)
    made, watched = evolving(tmp_path, evolving_url, data, service=away, every_n_steps=1, max_steps=2)
    made.train()
    assert watched.judged == [f"{name}@1"] * 2
    assert [row["evolving/unchanged/service"] for row in made.state.log_history if "evolving/failed" in row] == [1, 1]
    assert f"step 1: rubric {name} stays unchanged (service)" in caplog.text


def test_training_stops_on_failure_if_configured(tmp_path, evolving_url):
    _, data = data_of(evolving_url, "stopped", 1)
    away = Client(f"http://127.0.0.1:{unused_port()}", retries=0)
    more = {"on_failure": "error"}
    made, _ = evolving(tmp_path, evolving_url, data, service=away, every_n_steps=1, more=more, max_steps=2)
    with pytest.raises(EvolvingFailed, match=r"1 rubrics could not be evolved, including stopped/0 \(service\)"):
        made.train()


def test_modes_without_plain_criteria_are_refused_at_the_first_batch(tmp_path, url):
    made, _ = evolving(tmp_path, url, dataset(), mode="outcome", max_steps=1)
    with pytest.raises(ValueError, match="ignores with mode 'outcome'"):
        made.train()


@pytest.mark.parametrize(
    "wrong", [{"every_n_steps": 0}, {"groups": 0}, {"deadline_s": 0.0}, {"min_spread": 0.0}, {"on_failure": "stop"}]
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EvolvingRubrics("http://judge.test", **{"every_n_steps": 1, **wrong})


def test_an_invalid_state_is_refused():
    with pytest.raises(ValueError, match="cannot be read"):
        EvolvingRubrics("http://judge.test", every_n_steps=1).load_state({"last": 1, "batches": 1, "groups": [{}]})


@pytest.mark.slow
def test_two_ranks_with_halves_of_a_group_are_repinned_at_one_step(tmp_path, evolving_url, writer):
    (name,), _ = data_of(evolving_url, "ranks", 1)
    policy(tmp_path / "policy")
    before = len(writer.questions)
    command = [sys.executable, "-m", "tests.trainer_client.trl.evolving_rank", str(tmp_path), evolving_url, name]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port()), "WORLD_SIZE": "2"}
    processes = []
    for rank in range(2):
        place = {**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        environment = {**os.environ, "TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1", **place}
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    try:
        for process in processes:
            said, _ = process.communicate(timeout=300)
            assert process.returncode == 0, said[-3000:]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert first["judged"] == second["judged"] == [f"{name}@1", f"{name}@1", f"{name}@2"]
    assert [prompt.count("Response ") for prompt in writer.questions[before:]] == [4]
    assert first["kept"] == second["kept"]
    assert len(first["kept"]["groups"][0]["group"]["responses"]) == 4
