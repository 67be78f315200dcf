"""Rows are checked when the trainer is built: mistakes are found before a model is loaded or a response generated."""

import json
from contextlib import nullcontext

import pytest
from datasets import Dataset, IterableDataset
from examples.recipes import run as recipes_run

from tests.docs.pages import ROOT
from tests.trainer_client.trl.judges import FakeJudgeTransport, rewarding
from tests.trainer_client.trl.training import CRITERIA, PLAIN, dataset, policy, settings, tokenizer, trainer
from trainer_client.errors import InvalidRequest
from trainer_client.trl import RubricGRPOTrainer, RubricReward, RubricRewardWarning
from trainer_client.trl.config import recipe

pytestmark = pytest.mark.trl

EXACT = {"id": "answer", "kind": "answer", "description": "It is 14.", "verification": {"method": "exact"}}


def build(tmp_path, data, *, method="srar", reward=None, **given):
    """Build a trainer whose model cannot be loaded, so that only what comes before it can happen."""
    reward = reward or rewarding(FakeJudgeTransport(), None)
    return RubricGRPOTrainer(
        str(tmp_path / "no such model"), reward, settings(tmp_path, method=method), train_dataset=data, **given
    )


@pytest.mark.parametrize(
    ("criteria", "columns", "method", "says"),
    [
        (CRITERIA, {"rubric": ["{", "{"]}, "srar", "row 0: this begins like JSON"),
        (CRITERIA, {"rubric": [json.dumps([{"text": "Is right."}])] * 2}, "srar", "row 0: .*description"),
        (CRITERIA, {"ground_truth": ["14", None]}, "srar", "row 1: criterion 'answer' .* add the column ground_truth"),
        (CRITERIA, {"ground_truth": ["14", " "]}, "rar", "row 1: criterion 'answer' .* nothing to compare with"),
        (PLAIN, {}, "srar", "row 0: no criterion has kind 'answer'"),
        (CRITERIA, {}, "rubric", "row 0: .*pitfall"),
        (CRITERIA, {"rubric": [None, None]}, "rubric", "row 0: it has no rubric"),
        (CRITERIA, {"rubric": [None] * 2, "ground_truth": [None] * 2}, "srar", "row 0: it has neither a rubric nor"),
        (CRITERIA, {"ground_truth": [["14"], ["14"]]}, "srar", "row 0: ground_truth is of type list"),
    ],
)  # fmt: skip
def test_an_invalid_row_is_named_before_the_model_is_loaded(tmp_path, criteria, columns, method, says):
    with pytest.raises(InvalidRequest, match=f"train_dataset, {says}"):
        build(tmp_path, dataset(criteria, **columns), method=method)


def test_a_row_of_an_evaluation_dataset_is_checked_too(tmp_path):
    good, bad = dataset(), dataset(ground_truth=[None, None])
    for evaluated, name in ((bad, "eval_dataset"), ({"held": good, "out": bad}, r"eval_dataset\['out'\]")):
        with pytest.raises(InvalidRequest, match=f"{name}, row 0: criterion 'answer'"):
            build(tmp_path, good, eval_dataset=evaluated)


def test_a_stream_is_checked_and_keeps_its_first_rows(tmp_path):
    def rows(bad):
        yield {"prompt": "1+1=?", "rubric": json.dumps(CRITERIA), "ground_truth": None if bad else "14"}

    with pytest.raises(InvalidRequest, match="train_dataset, row 0: criterion 'answer'"):
        build(tmp_path, IterableDataset.from_generator(rows, gen_kwargs={"bad": True}))


def test_an_outcome_needs_a_ground_truth(tmp_path):
    reward = rewarding(FakeJudgeTransport(), None, mode="outcome")
    with pytest.raises(InvalidRequest, match="row 0: it has no ground_truth, which the mode 'outcome' compares with"):
        build(tmp_path, Dataset.from_list([{"prompt": "1+1=?"}]), method="rubric", reward=reward)


def test_an_expected_answer_of_the_criterion_needs_no_ground_truth():
    reward = rewarding(FakeJudgeTransport(), None, mode="stepwise")
    reward.check_rows([{"prompt": "a", "rubric": [{**EXACT, "verification": {"method": "exact", "expected": "14"}}]}])
    reward.check_rows([{"prompt": "a", "rubric": "team/r@3"}])
    reward.check_rows([])


@pytest.mark.parametrize("streamed", [False, True])
def test_a_whole_dataset_is_checked_for_any_trainer(streamed):
    reward = rewarding(FakeJudgeTransport(), None)
    rows = [{"prompt": f"{n}", "rubric": json.dumps(PLAIN), "ground_truth": "14"} for n in range(40)]
    bad = [*rows, {**rows[0], "rubric": "{"}]
    for data, reason in ((rows, None), (bad, "row 40: this begins like JSON")):
        given = Dataset.from_list(data)
        with pytest.raises(InvalidRequest, match=reason) if reason else nullcontext():
            reward.check_rows(given.to_iterable_dataset() if streamed else given)


def test_columns_are_renamed_and_lookalikes_reported_before_training():
    row = {"prompt": "a", "rubric": [EXACT], "answer": 14}
    reward = rewarding(FakeJudgeTransport(), None, mode="stepwise")
    looks = "column 'answer', which looks like its ground_truth"
    with pytest.warns(RubricRewardWarning, match=looks), pytest.raises(InvalidRequest, match="row 0"):
        reward.check_rows([row])
    rewarding(FakeJudgeTransport(), None, mode="stepwise", columns={"ground_truth": "answer"}).check_rows([row])


@pytest.mark.parametrize(
    ("file", "name"),
    [("stepwise", "srar"), ("stepwise", "rar"), ("problems", "rgr"), ("problems", "ruscarl"), ("problems", "dapo")],
)
def test_the_example_rows_suit_their_methods(tmp_path, file, name):
    lines = (ROOT / "examples/training" / f"{file}.jsonl").read_text(encoding="utf-8").splitlines()
    reward = rewarding(FakeJudgeTransport(), None, **recipe(name).reward)
    with pytest.raises(OSError, match="no such model"):  # the rows passed
        build(tmp_path, Dataset.from_list(list(map(json.loads, lines))), method=recipe(name).method, reward=reward)


@pytest.mark.parametrize(("name", "asks"), [("srar", True), ("rar", True), ("rgr", False)])
def test_a_step_wise_recipe_asks_the_policy_for_steps(tmp_path, monkeypatch, name, asks):
    policy(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    file = ROOT / "examples/training" / ("stepwise.jsonl" if asks else "problems.jsonl")
    monkeypatch.setattr(
        recipes_run, "RubricReward", lambda url, **given: rewarding(FakeJudgeTransport(), None, **given)
    )
    monkeypatch.setattr(recipes_run.RubricGRPOTrainer, "train", lambda self: None)
    chosen = {"use_cpu": True, "bf16": False, "report_to": "none", "per_device_train_batch_size": 8}
    given = [part for key, value in chosen.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    arguments = [str(tmp_path / "model"), str(file), "http://judge.test", str(tmp_path / "out"), "--prompts", "2"]
    monkeypatch.setattr("sys.argv", ["x", *arguments, *given])
    prompts = recipes_run.run(name).train_dataset["prompt"]
    assert [prompt.count('begin each of them with "### Step N:"') for prompt in prompts] == [asks] * len(prompts)


@pytest.mark.parametrize(("texts", "warns"), [(["14", "15"], True), (["### Step 1: 14", "15"], False)])
def test_responses_without_steps_are_warned_about_once(tmp_path, url, recwarn, texts, warns):
    made = trainer(tmp_path, url, texts=texts, method="srar", max_steps=2, reward=RubricReward(url))
    made.train()
    found = [str(one.message) for one in recwarn.list if issubclass(one.category, RubricRewardWarning)]
    assert len(found) == warns
    if warns:
        assert "8 of 8 responses have no steps" in found[0]
        assert "with_step_format" in found[0]
