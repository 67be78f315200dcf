"""A run that nobody named gets a name of its own, which all its requests and its checkpoints share."""

import json
import re
from types import SimpleNamespace

import pytest

pytest.importorskip("trl")


from tests.trainer_client.trl.generating import Prompts
from tests.trainer_client.trl.judges import FakeJudgeTransport, Trainer
from tests.trainer_client.trl.training import PLAIN, dataset, text_trainer, trainer
from trainer_client import AsyncClient
from trainer_client.trl import RubricReward
from trainer_client.wire.groups import MAX_RUN_CHARACTERS

pytestmark = pytest.mark.trl

MADE = re.compile(r"out-\d{8}-\d{6}")


def unnamed(judge, run=None, **options):
    return RubricReward(AsyncClient("http://judge.test", run, transport=judge), **{"max_unscored": 1.0} | options)


def runs(judge):
    """The run of each request; an empty text for one without."""
    return [asked.get("run", "") for asked in judge.asked]


@pytest.mark.parametrize("ours", [False, True])
def test_it_is_named_after_output_folder_and_time_and_a_resumed_one_keeps_the_name(tmp_path, ours, caplog):
    judge = FakeJudgeTransport()
    text_trainer(ours, tmp_path, unnamed(judge), max_steps=2, save_steps=2).train()
    (name,) = set(runs(judge))
    assert MADE.fullmatch(name)
    assert sum(f"http://judge.test/console/run?run={name}" in one.getMessage() for one in caplog.records) == 1
    saved = json.loads((tmp_path / "out/checkpoint-2/trainer_state.json").read_text())
    saved["stateful_callbacks"]["RubricReward"]["attributes"]["run"] = "out-before"  # as if it had begun before
    (tmp_path / "out/checkpoint-2/trainer_state.json").write_text(json.dumps(saved))
    later = FakeJudgeTransport()
    resumed = text_trainer(ours, tmp_path, unnamed(later), max_steps=4)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out/checkpoint-2"))
    assert set(runs(later)) == {"out-before"}


def call(reward, trainer, state=None):
    return reward(["a"], ["1"], trainer_state=state or SimpleNamespace(global_step=0, stateful_callbacks={}), **trainer)


def logs(**args):
    return Trainer(args=SimpleNamespace(**args)).logs


@pytest.mark.parametrize(
    ("own", "run_name", "sent"), [("mine", None, "mine"), (None, "qwen-7", "qwen-7"), ("mine", "qwen-7", "mine")]
)
async def test_a_given_name_is_kept_and_linked_to_once(own, run_name, sent, caplog):
    judge = FakeJudgeTransport()
    reward = unnamed(judge, own, rubric="r")
    for _ in range(2):
        await call(reward, logs(output_dir="out", run_name=run_name))
    assert runs(judge) == [sent, sent]
    assert sum(f"/console/run?run={sent}" in one.getMessage() for one in caplog.records) == 1
    assert reward.run == sent


async def test_a_run_name_that_is_the_output_folder_is_no_name():
    judge = FakeJudgeTransport()
    await call(unnamed(judge, rubric="r"), logs(output_dir="a/out", run_name="a/out"))
    assert MADE.fullmatch(runs(judge)[0])


async def test_all_functions_of_a_trainer_share_the_name():
    judges, state = [FakeJudgeTransport(), FakeJudgeTransport()], SimpleNamespace(global_step=0, stateful_callbacks={})
    for judge in judges:
        await call(unnamed(judge, rubric="r"), logs(output_dir="out", run_name=None), state)
    assert runs(judges[0]) == runs(judges[1]) == [state.stateful_callbacks["RubricReward"]["attributes"]["run"]]


async def test_without_a_known_trainer_the_time_alone_names_the_run():
    judge = FakeJudgeTransport()
    await call(unnamed(judge, rubric="r"), {})  # TRL before 1.0 passes only its state
    assert re.fullmatch(r"training-\d{8}-\d{6}", runs(judge)[0])


async def test_outside_of_training_there_is_no_run(caplog):
    judge = FakeJudgeTransport()
    reward = unnamed(judge, rubric="r")
    await reward(["a"], ["1"])
    assert runs(judge) == [""]
    assert reward.run is None
    assert "console" not in caplog.text


@pytest.mark.parametrize("folder", ["x" * 300, "x/" * 300, ".", "/"])
async def test_any_folder_makes_a_name_that_the_service_takes(folder):
    judge = FakeJudgeTransport()
    await call(unnamed(judge, rubric="r"), logs(output_dir=folder, run_name=None))
    assert re.search(r"\w-\d{8}-\d{6}$", runs(judge)[0])
    assert len(runs(judge)[0]) <= MAX_RUN_CHARACTERS


async def test_a_name_in_the_link_is_quoted(caplog):
    await call(unnamed(FakeJudgeTransport(), "a b/ü&c", rubric="r"), logs(output_dir="out", run_name=None))
    assert "/console/run?run=a+b%2F%C3%BC%26c" in caplog.text


def test_both_passes_of_rgr_are_recorded_in_the_run(tmp_path):
    judge = FakeJudgeTransport()
    factual = [{**criterion, "kind": "factual"} for criterion in PLAIN]
    made = trainer(
        tmp_path, "", data=dataset(factual), method="rgr", method_options={"length_penalty": None}, max_steps=2,
        reward=unnamed(judge, truncation_factor=0.5), run_name="rgr-run",
    )  # fmt: skip
    made.model.config.max_position_embeddings = 2048
    made.rollout_func = Prompts("0.1", "0.2", "0.3", "0.4")
    made.train()
    assert len(judge.asked) == 4
    assert set(runs(judge)) == {"rgr-run"}
    first = judge.asked[0]["groups"][0]["responses"]
    assert all("stopped" in response for response in first)  # as in the second pass
    passes = [row["rubric/unscored"] for row in made.state.log_history if "rubric/unscored" in row]
    assert len(passes) == 2


def test_measures_are_reported_for_a_made_name(tmp_path):
    judge = FakeJudgeTransport()
    text_trainer(True, tmp_path, unnamed(judge), max_steps=1).train()
    (body,) = judge.reported
    assert MADE.fullmatch(json.loads(body)["run"])
