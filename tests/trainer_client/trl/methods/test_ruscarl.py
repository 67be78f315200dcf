"""RuscaRL in the trainer: the prompt each sample is generated from, and the one it is trained on."""

import pytest
import torch

from tests.trainer_client.trl.generating import Prompts, batch, with_server
from tests.trainer_client.trl.training import PLAIN, RIGHT, WRONG, dataset, policy, tokenizer, trainer, weights
from trainer_client import Client
from trainer_client.trl import RubricReward
from trainer_client.trl.methods import Ruscarl
from trainer_client.trl.methods.base import SampleRequest, TrainingProgress
from trainer_client.wire import RubricContent

pytestmark = pytest.mark.trl

CRITERIA = RubricContent(criteria=PLAIN).criteria
LONG = {"max_completion_length": 16, "num_generations": 4, "max_steps": 10}


def scaffolding(tmp_path, url, **given):
    options = {"pattern": "binary", "full": 2, "decay": "constant", "weights": False, **given.pop("method_options", {})}
    made = trainer(
        tmp_path, url, data=given.pop("data", dataset(PLAIN)), method="ruscarl", method_options=options, **LONG, **given
    )
    made.rollout_func = Prompts(RIGHT, WRONG)
    return made


def test_each_sample_is_generated_from_its_own_scaffold(tmp_path, url):
    made = scaffolding(tmp_path, url)
    batch(made)
    (asked,) = made.rollout_func.asked
    for row, prompt in enumerate(asked):
        plain = made.train_dataset["prompt"][row // 4]
        assert prompt.startswith(plain)
        assert (prompt != plain) == (row % 4 < 2)
        assert all((f"- {criterion.description}" in prompt) == (row % 4 < 2) for criterion in CRITERIA)


@pytest.mark.parametrize(("options", "where"), [({}, 0), ({"place": "user", "weights": False}, 1)])
def test_in_a_chat_the_scaffold_is_in_the_system_message_with_its_points_by_default(options, where):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How much is 3+4?"}]
    method = Ruscarl(pattern="full", decay="constant", **options)
    (told,) = method.prompts([SampleRequest(chat, "p", CRITERIA, 1, 4)], TrainingProgress(1, 10, 0))
    changed = [new != old for new, old in zip(told, chat, strict=True)]
    assert changed == [where == 0, where == 1]
    assert told[where]["content"].startswith(chat[where]["content"])
    assert all(f"- {criterion.description}" in told[where]["content"] for criterion in CRITERIA)
    assert ("point)" in told[where]["content"] or "points)" in told[where]["content"]) == (where == 0)


def test_the_policy_is_trained_on_the_plain_prompts(tmp_path, url):
    made = scaffolding(tmp_path, url)
    inputs = batch(made)
    words = tokenizer()
    for row, ids in enumerate(inputs["prompt_ids"]):
        assert words.decode(ids, skip_special_tokens=True) == made.train_dataset["prompt"][row // 4]
    assert "old_per_token_logps" not in inputs


def test_the_scaffolded_ratio_trains_on_the_generation_prompt(tmp_path, url):
    made = scaffolding(tmp_path, url, method_options={"ratio": "scaffolded"})
    inputs = batch(made)
    said = [tokenizer().decode(ids, skip_special_tokens=True) for ids in inputs["prompt_ids"]]
    assert said == made.rollout_func.asked[0]


def test_the_corrected_ratio_compares_with_the_policy_that_saw_the_scaffold(tmp_path, url):
    made = scaffolding(tmp_path, url, method_options={"ratio": "corrected"})
    inputs = batch(made)
    words, model = tokenizer(), policy(tmp_path / "policy")
    for row in (0, 3):
        before = words(made.rollout_func.asked[0][row])["input_ids"]
        said = inputs["completion_ids"][row][inputs["completion_mask"][row].bool()].tolist()
        logps = log_probabilities(model, before, said)
        torch.testing.assert_close(inputs["old_per_token_logps"][row, : len(said)], logps, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("decay", "is_reported"), [("constant", True), ("linear", False)])
def test_the_self_internalization_gap_is_measured_where_both_probabilities_are_known(tmp_path, url, decay, is_reported):
    options = {"ratio": "corrected", "decay": decay}
    made = scaffolding(tmp_path, url, method_options=options, num_iterations=2)
    inputs = batch(made)
    name = "policy/self_internalization_gap"
    assert (name in made._metrics["train"]) == is_reported
    if is_reported:
        words, model, gaps = tokenizer(), policy(tmp_path / "policy"), []
        for row in (0, 1, 4, 5):
            said = inputs["completion_ids"][row][inputs["completion_mask"][row].bool()].tolist()
            prompts = (made.train_dataset["prompt"][row // 4], made.rollout_func.asked[0][row])
            own, shown = (log_probabilities(model, words(prompt)["input_ids"], said) for prompt in prompts)
            gaps.append((own - shown).mean().item())
        assert made._metrics["train"][name] == [pytest.approx(sum(gaps) / 4, abs=1e-4)]


def log_probabilities(model, before, said):
    """The log-probabilities of tokens at the temperature of the method."""
    logits = model(input_ids=torch.tensor([before + said])).logits[0, len(before) - 1 : -1]
    return torch.log_softmax(logits / 0.7, -1).gather(1, torch.tensor(said).unsqueeze(1)).squeeze(1)


def test_a_scaffold_that_leaves_no_room_for_a_response_is_dropped_and_counted(tmp_path, url):
    long = [{**PLAIN[0], "description": "x" * 300}, *PLAIN[1:]]
    made = scaffolding(tmp_path, url, data=dataset(long))
    batch(made)
    assert made.rollout_func.asked[0] == [prompt for prompt in made.train_dataset["prompt"] for _ in range(4)]
    assert made._metrics["train"]["scaffold/too_long"] == [0.5]


def test_criteria_of_referenced_rubrics_are_shown_too(tmp_path, url):
    with Client(url) as client:
        client.publish_rubric("tests/scaffold", PLAIN)
    data = dataset(PLAIN).remove_columns("rubric")
    made = scaffolding(tmp_path, url, data=data, reward=RubricReward(url, "tests/scaffold"))
    batch(made)
    assert f"- {CRITERIA[0].description}" in made.rollout_func.asked[0][0]
    assert made.rubric_reward.state() == {"pins": {"tests/scaffold": "tests/scaffold@1"}}


@pytest.mark.parametrize(("column", "scaffolded"), [("items", 0.5), (None, 0.0)])
def test_the_scaffold_shows_the_rubric_of_the_column_that_the_reward_function_names(tmp_path, url, column, scaffolded):
    reward = RubricReward(url, mode="outcome", columns={"rubric": column})
    made = scaffolding(tmp_path, url, data=dataset(PLAIN).rename_columns({"rubric": column or "rubric"}), reward=reward)
    batch(made)
    assert made._metrics["train"]["scaffold/prompts"] == [scaffolded]


def test_rows_without_a_rubric_keep_their_prompt(tmp_path, url):
    data = dataset(PLAIN).remove_columns("rubric")
    made = scaffolding(tmp_path, url, data=data, reward=RubricReward(url, mode="outcome"))
    batch(made)
    assert made.rollout_func.asked[0] == [prompt for prompt in data["prompt"] for _ in range(4)]
    assert made._metrics["train"]["scaffold/prompts"] == [0.0]


def test_the_scaffold_fades_during_training(tmp_path, url):
    made = scaffolding(tmp_path, url, method_options={"decay": "sigmoid", "pattern": "full"})
    made.train()
    scaffolded = [sum("keep the following in mind" in prompt for prompt in asked) for asked in made.rollout_func.asked]
    assert scaffolded == [8, 8, 0, 0, 0, 0, 0, 0, 0, 0]


def test_evaluation_shows_no_scaffold(tmp_path, url):
    made = scaffolding(tmp_path, url, per_device_eval_batch_size=4)
    made.eval_dataset = made.train_dataset
    made.evaluate()
    assert all("keep the following" not in prompt for asked in made.rollout_func.asked for prompt in asked)


def test_a_vllm_server_is_asked_for_one_sample_per_scaffold(tmp_path, url):
    made = scaffolding(tmp_path, url)
    server = with_server(made)
    inputs = batch(made)
    ((count, prompts),) = server.asked
    assert (count, len(prompts)) == (1, 8)
    assert ["keep the following" in prompt for prompt in prompts] == [True, True, False, False] * 2
    assert "importance_sampling_ratio" not in inputs


def test_other_methods_ask_a_vllm_server_for_whole_groups(tmp_path, url):
    made = trainer(tmp_path, url, data=dataset(PLAIN), vllm_importance_sampling_correction=False)
    server = with_server(made)
    batch(made)
    ((count, prompts),) = server.asked
    assert (count, len(prompts)) == (4, 2)


def asked(sample, prompt="?", criteria=CRITERIA * 4):
    return SampleRequest(prompt, "p", criteria, sample, 8)


def test_the_shown_criteria_depend_only_on_run_step_and_sample():
    method, training_progress = Ruscarl(decay="constant"), TrainingProgress(3, 10, 7)
    drawn = {tuple(method.shown(asked(4), m)) for m in (training_progress, TrainingProgress(3, 10, 7))}
    assert len(drawn) == 1
    assert method.shown(asked(4), TrainingProgress(4, 10, 7)) != method.shown(asked(4), training_progress)
    assert method.shown(asked(4), TrainingProgress(3, 10, 8)) != method.shown(asked(4), training_progress)


def test_the_first_sample_of_a_group_sees_everything_and_the_last_nothing():
    method, training_progress = Ruscarl(decay="constant"), TrainingProgress(1, 10, 7)
    assert [len(method.shown(asked(i), training_progress)) for i in range(1, 9)] == [12, 10, 9, 7, 5, 3, 2, 0]


def test_the_trained_weights_depend_on_the_responses_and_not_on_the_scaffold(tmp_path, url):
    scaffolded = scaffolding(tmp_path, url, temperature=1.0, top_k=0, top_p=1.0)
    scaffolded.args.max_steps = 1
    scaffolded.train()
    plain = trainer(tmp_path, url, data=dataset(PLAIN), reward=RubricReward(url, mode="points"), **LONG)
    plain.args.max_steps = 1
    plain.rollout_func = Prompts(RIGHT, WRONG)
    plain.train()
    torch.testing.assert_close(weights(scaffolded.model), weights(plain.model))
