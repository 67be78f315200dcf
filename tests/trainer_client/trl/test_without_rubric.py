"""Rows with a missing or empty rubric: methods that can use another signal train on them."""

import pytest

from tests.trainer_client.trl.generating import batch
from tests.trainer_client.trl.training import CRITERIA, PLAIN, RIGHT, SLIP, WRONG, dataset, trainer
from trainer_client.advantages import group_advantages
from trainer_client.errors import InvalidRequest

pytestmark = pytest.mark.trl

TEXTS = [RIGHT, SLIP, WRONG, "\\boxed{14}"]


def rows(criteria, empty, **columns):
    """A row with these criteria, and one with an empty rubric."""
    return dataset(criteria, rubric=[{"criteria": list(criteria)}, empty], **columns)


@pytest.mark.parametrize("empty", [None, {"criteria": []}], ids=str)
@pytest.mark.parametrize("method", ["srar", "rar"])
def test_step_wise_methods_are_grpo_on_the_outcome_there(tmp_path, url, method, empty):
    made = trainer(tmp_path, url, texts=TEXTS, data=rows(CRITERIA, empty), method=method)
    inputs = batch(made)
    expected = group_advantages([1.0, 0.1, 0.1, 0.9])
    for own, advantage in zip(inputs["advantages"][4:], expected, strict=True):
        assert own[0].item() == pytest.approx(advantage, abs=1e-5)
    assert made._metrics["train"]["rubric/without_rubric"] == [0.5]
    assert inputs["completion_mask"].any(dim=1).all()


def test_ruscarl_rewards_the_outcome_and_shows_no_scaffold(tmp_path, url):
    options = {"pattern": "full", "decay": "constant"}
    made = trainer(tmp_path, url, data=rows(PLAIN, {"criteria": []}), method="ruscarl", method_options=options)
    made.model.config.max_position_embeddings = 4096
    made._metrics["train"].clear()
    inputs = batch(made)
    assert made._metrics["train"]["scaffold/prompts"] == [0.5]
    assert made._rewards[4:] == [0.0] * 4  # an untrained policy gives no answer
    assert inputs["completion_mask"].any(dim=1).all()
    assert made._metrics["train"]["rubric/without_rubric"] == [0.5]


def test_both_gates_of_dro_pass_such_a_group(tmp_path, url):
    given = {"method": "dro", "num_generations": 4, "method_options": {"variance_filter": False}}
    data = rows(PLAIN[:1], None, reference_answer=["14", "14"])
    made = trainer(tmp_path, url, texts=["no", "idea", "at", "all"], data=data, **given)
    inputs = batch(made)
    assert inputs["completion_mask"].any(dim=1).tolist() == [False] * 4 + [True] * 4
    assert made._metrics["train"]["dro/coverage"] == [0.5]
    assert made._metrics["train"]["dro/no_answer"] == [1.0]


@pytest.mark.parametrize(("empty", "says"), [(None, "it has no rubric"), ({"criteria": []}, "its rubric is empty")])
@pytest.mark.parametrize("method", ["rubric", "rgr", "grounded"])
def test_other_methods_refuse_such_a_row_by_its_index_with_a_remedy(tmp_path, url, method, empty, says):
    made = trainer(tmp_path, url, texts=TEXTS, data=dataset(PLAIN), method=method)
    made.train_dataset = rows(PLAIN, empty)  # as in a row after the first ones, which are checked before training
    with pytest.raises(InvalidRequest, match=rf"row \d: {says}; put one .* one criterion of kind 'answer'"):
        batch(made)


@pytest.mark.parametrize("method", ["rubric", "rgr", "grounded"])
def test_they_train_on_the_outcome_of_a_row_with_an_outcome_rubric(tmp_path, url, method):
    outcome = {"id": "answer", "kind": "answer", "description": "It is right.", "verification": {"method": "math"}}
    options = {"method_options": {"length_penalty": None}} if method == "rgr" else {}
    made = trainer(tmp_path, url, texts=TEXTS, data=rows(PLAIN, {"criteria": [outcome]}), method=method, **options)
    inputs = batch(made)
    assert made._rewards[4:] == [1.0, 0.0, 0.0, 1.0]
    assert inputs["advantages"][4:].ne(0).all()
