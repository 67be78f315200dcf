"""The trainer against a real service: the advantage of each token, and what leaves the weights unchanged."""

import math

import pytest
import torch

from tests.trainer_client.trl.training import (
    BARE,
    PLAIN,
    RIGHT,
    SLIP,
    WRONG,
    dataset,
    policy,
    saying,
    tokenizer,
    trainer,
    weights,
)
from trainer_client import InvalidRequest
from trainer_client.advantages import group_advantages, stepwise_advantages
from trainer_client.losses import k3
from trainer_client.trl import RubricReward

pytestmark = pytest.mark.trl

TEXTS = [RIGHT, SLIP, WRONG, BARE]
WEIGHED = [1.0, 1 / 3, 0.0, 0.0]
BASE = [1.0, 0.1, 0.1, 0.0]
DELTAS = [{1: 0.4, 2: 0.4}, {1: 0.4, 2: -1.0}, {1: 0.0, 2: 0.0}, {}]


def log_probabilities(model, prompt, text):
    """log pi of a response's tokens, including EOS."""
    words = tokenizer()
    before, said = words(prompt)["input_ids"], [*words(text)["input_ids"], words.eos_token_id]
    logits = model(input_ids=torch.tensor([before + said])).logits[0, len(before) - 1 : -1]
    return torch.log_softmax(logits.float(), -1).gather(1, torch.tensor(said).unsqueeze(1)).squeeze(1)


def gradient_step(model, advantages, prompts):
    """The parameters after one step of SGD at a rate of 1 on the token mean of -A log pi, at pi = pi_old."""
    losses, tokens = [], 0
    for prompt in prompts:
        for text, advantage in zip(TEXTS, advantages, strict=True):
            logps = log_probabilities(model, prompt, text)
            losses.append(-(torch.tensor(advantage, dtype=torch.float32) * logps).sum())
            tokens += len(logps)
    model.zero_grad()
    (torch.stack(losses).sum() / tokens).backward()
    return weights(model) - torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def token_advantages(normalise=True):
    header = len("### Step 1: 3+4=7\n")
    lengths = [len(text) + 1 for text in TEXTS]
    spans = [{1: (0, header), 2: (header, len(text))} for text in TEXTS[:3]] + [{}]
    return stepwise_advantages(BASE, DELTAS, spans, lengths, normalise=normalise)


@pytest.mark.parametrize("normalise", [True, False])
def test_srar_updates_the_policy_by_each_tokens_own_advantage(tmp_path, url, normalise):
    trained = trainer(tmp_path, url, texts=TEXTS, method="srar", method_options={"normalise": normalise})
    expected = gradient_step(policy(tmp_path / "policy"), token_advantages(normalise), dataset()["prompt"])
    trained.train()
    torch.testing.assert_close(weights(trained.model), expected, atol=2e-6, rtol=1e-4)


def test_padding_tokens_have_no_advantage(tmp_path, url):
    plain = trainer(tmp_path, url, texts=TEXTS, method="srar")
    output = plain._generate_and_score_completions([dict(row) for row in dataset() for _ in range(4)])
    first, *_ = token_advantages()
    assert output["advantages"][0, : len(first)].tolist() == pytest.approx(first, abs=1e-5)
    assert output["advantages"][3, len(BARE) + 1 :].abs().max() == 0


def test_the_plain_method_updates_the_policy_by_the_rubrics_weighted_mean(tmp_path, url):
    trained = trainer(tmp_path, url, texts=TEXTS, data=dataset(PLAIN))
    advantages = group_advantages(WEIGHED, ddof=1)
    lengths = [len(text) + 1 for text in TEXTS]
    expected = gradient_step(
        policy(tmp_path / "policy"), [[a] * n for a, n in zip(advantages, lengths, strict=True)], dataset()["prompt"]
    )
    trained.train()
    torch.testing.assert_close(weights(trained.model), expected, atol=2e-6, rtol=1e-4)


def test_the_outcome_alone_needs_no_rubric(tmp_path, url):
    by_outcome = dataset(PLAIN).remove_columns("rubric")
    trained = trainer(tmp_path, url, texts=TEXTS, data=by_outcome, reward=RubricReward(url, mode="outcome"))
    trained.train()
    assert list(trained._logs["advantages"])[:4] == pytest.approx(group_advantages([1.0, 0.0, 0.0, 0.0], ddof=1))


def test_rar_gives_all_tokens_of_a_response_one_advantage(tmp_path, url):
    trained = trainer(tmp_path, url, texts=TEXTS, method="rar")
    output = trained._generate_and_score_completions([dict(row) for row in dataset() for _ in range(4)])
    totals = [base + math.fsum(own.values()) for base, own in zip(BASE, DELTAS, strict=True)]
    for row, advantage in enumerate(group_advantages(totals)):
        tokens = len(TEXTS[row]) + 1
        assert output["advantages"][row, :tokens].tolist() == pytest.approx([advantage] * tokens, abs=1e-5)


def test_a_response_with_a_missing_part_has_no_effect(tmp_path, url):
    def sometimes(prompts, **_):
        return [None if row % 4 == 1 else 0.0 for row in range(len(prompts))]

    given = {"rewards": [sometimes], "required_rewards": ["sometimes"]}
    trained = trainer(tmp_path, url, texts=TEXTS, data=dataset(PLAIN), beta=0.1, **given)
    output = trained._generate_and_score_completions([dict(row) for row in dataset(PLAIN) for _ in range(4)])
    assert output["advantages"].tolist()[:4] == pytest.approx(group_advantages([1.0, None, 0.0, 0.0], ddof=1), abs=1e-5)
    assert output["completion_mask"].sum(dim=1).tolist()[:4] == [len(RIGHT) + 1, 0, len(WRONG) + 1, len(BARE) + 1]
    assert output["num_items_in_batch"] == output["completion_mask"].sum()


@pytest.mark.parametrize("nothing", [None, math.nan, math.inf, -math.inf])
def test_steps_without_any_reward_leave_the_weights_unchanged_even_with_momentum(tmp_path, url, caplog, nothing):
    seen = []

    def only_at_first(prompts, trainer_state, **_):
        seen.append(weights(trained.model))
        return [nothing if trainer_state.global_step else 0.0] * len(prompts)

    trained = trainer(
        tmp_path, url, texts=TEXTS, data=dataset(PLAIN), rewards=[only_at_first], required_rewards=["only_at_first"],
        max_steps=3, optim="adamw_torch", learning_rate=1e-2, weight_decay=0.1, beta=0.1,
    )  # fmt: skip
    before = weights(trained.model)
    trained.train()
    assert not torch.equal(seen[1], before)
    assert torch.equal(seen[2], seen[1])
    assert torch.equal(weights(trained.model), seen[1])
    assert "no response has a reward, so the policy is not updated" in caplog.text


def test_a_step_whose_responses_are_all_cut_off_says_so(tmp_path, url, caplog):
    trained = trainer(tmp_path, url, texts=TEXTS, data=dataset(PLAIN), mask_truncated_completions=True)
    trained.rollout_func = saying(RIGHT, WRONG, ended=False)
    trained.train()
    assert "every response with a reward was cut off at max_completion_length" in caplog.text
    assert "no response has a reward" not in caplog.text


def test_a_step_whose_groups_are_all_filtered_names_the_method(tmp_path, url, caplog):
    options = {"dynamic_sampling": True}
    trainer(tmp_path, url, texts=[RIGHT], data=dataset(PLAIN), method="grounded", method_options=options).train()
    assert "method 'grounded' leaves every group out of the loss (see groups/uninformative)" in caplog.text


@pytest.mark.parametrize("columns", [None, {"ground_truth": "truth"}])
def test_columns_that_the_trainer_would_remove_are_refused_before_a_model_is_loaded(tmp_path, url, columns):
    data = dataset(PLAIN) if columns is None else dataset().remove_columns("rubric").add_column("truth", ["14"] * 2)
    with pytest.raises(InvalidRequest, match=r"remove_unused_columns=True takes .* set remove_unused_columns=False"):
        trainer(
            tmp_path, url, data=data, remove_unused_columns=True, reward=RubricReward(url, "r", columns=columns)
        )  # fmt: skip


def test_a_judge_unreachable_for_the_whole_run_leaves_the_weights_unchanged(tmp_path, unserved_url):
    away = RubricReward(
        unserved_url, preflight=False, wait_for_judge_s=0.0, max_unscored=1.0, deadline_s=0.2, grace_s=0.0
    )
    trained = trainer(tmp_path, "", texts=TEXTS, reward=away, method="srar", max_steps=2)
    before = weights(trained.model)
    trained.train()
    assert torch.equal(weights(trained.model), before)
    assert trained.state.log_history[0]["groups/unscored"] == 1.0


def test_uninformative_groups_are_excluded_from_the_loss_on_request(tmp_path, url):
    texts = [RIGHT] * 4 + TEXTS
    options = {"dynamic_sampling": True, "baseline": "leave_one_out"}
    reward = RubricReward(url, mode="weighted_mean")
    trained = trainer(
        tmp_path, url, texts=texts, data=dataset(PLAIN), reward=reward, method="grounded", method_options=options
    )
    output = trained._generate_and_score_completions([dict(row) for row in dataset(PLAIN) for _ in range(4)])
    assert output["completion_mask"][:4].sum() == 0
    assert output["completion_mask"][4:].sum(dim=1).min() > 0
    leave_one_out = group_advantages(WEIGHED, baseline="leave_one_out", ddof=1)
    assert output["advantages"].tolist()[4:] == pytest.approx(leave_one_out, abs=1e-5)


@pytest.mark.parametrize("away", [0.5, 40.0])
def test_grounded_bounds_the_divergence_of_every_token(tmp_path, url, away):
    reward = RubricReward(url, mode="weighted_mean")
    trained = trainer(tmp_path, url, texts=[RIGHT] * 4, data=dataset(PLAIN), reward=reward, method="grounded", beta=1.0)
    inputs = trained._generate_and_score_completions([dict(row) for row in dataset(PLAIN) for _ in range(4)])
    inputs["ref_per_token_logps"] = inputs["ref_per_token_logps"] + away
    trained.current_gradient_accumulation_steps = 1
    loss = trained._compute_loss(trained.model, inputs)
    logps = log_probabilities(trained.model, "(0+3)+4)*2=?\n", RIGHT)
    assert loss.item() == pytest.approx(k3(logps, logps + away).mean().item(), rel=1e-3)


def test_a_method_that_needs_steps_refuses_a_mode_without_them(tmp_path, url):
    with pytest.raises(ValueError, match="mode 'outcome', but method 'srar' needs the step of each verdict"):
        trainer(tmp_path, url, reward=RubricReward(url, mode="outcome"), method="srar")


@pytest.mark.parametrize("rewards", [[], ["two"]])
def test_exactly_one_rubric_reward_is_required(tmp_path, url, rewards):
    functions = [RubricReward(url), RubricReward(url)] if rewards else [lambda prompts, **_: [0.0] * len(prompts)]
    with pytest.raises(ValueError, match="give exactly one"):
        trainer(tmp_path, url, reward=functions[0], rewards=functions[1:])


def test_the_trainer_gives_no_warning_about_rewards_it_masks(tmp_path, url, recwarn):
    trainer(
        tmp_path, url, texts=TEXTS, data=dataset(PLAIN), rewards=[lambda prompts, **_: [0.0] * len(prompts)]
    ).train()
    assert not [warning for warning in recwarn if "counts" in str(warning.message) and "0" in str(warning.message)]


def test_evaluation_scores_without_training(tmp_path, url):
    trained = trainer(tmp_path, url, method="srar", max_completion_length=8, per_device_eval_batch_size=4)
    trained.eval_dataset = dataset()
    before = weights(trained.model)
    measured = trained.evaluate()
    assert "eval_rewards/RubricReward/mean" in measured
    assert torch.equal(weights(trained.model), before)


def test_samples_of_the_policy_itself_are_scored(tmp_path, url):
    trained = trainer(tmp_path, url, method="srar", max_completion_length=8, max_steps=2)
    trained.train()
    assert trained.state.log_history[0]["steps/without"] == 1.0


TURNED = "### Step 2: 7*2=14\n### Step 1: 3+4=7\n\\boxed{14}"
TWICE = "### Step 1: 3+4=7\n### Step 1: 7*2=14\n\\boxed{13}"
CUT = "### Step 1: 3+4=7\n### Ste"
EMPTY = ""


def test_reordered_repeated_truncated_or_missing_steps_have_defined_advantages(tmp_path, url):
    trained = trainer(tmp_path, url, texts=[TURNED, TWICE, CUT, EMPTY], method="srar", ended=False)
    output = trained._generate_and_score_completions([dict(row) for row in dataset() for _ in range(4)])
    header = len("### Step 1: 3+4=7\n")
    after = len("### Step 2: 7*2=14\n")
    spans = [{2: (0, after), 1: (after, len(TURNED))}, {1: (0, header)}, {1: (0, len(CUT))}, {}]
    deltas = [{1: 0.4, 2: 0.4}, {1: 0.4}, {1: 0.4}, {}]
    lengths = [len(TURNED), len(TWICE), len(CUT), 1]
    expected = stepwise_advantages([1.0, 0.1, 0.0, 0.0], deltas, spans, lengths)
    for row, advantages in enumerate(expected):
        assert output["advantages"][row, : len(advantages)].tolist() == pytest.approx(list(advantages), abs=1e-5)
    assert output["advantages"].isfinite().all()
    assert trained.state.log_history == []
    assert trained._metrics["eval"]["steps/without"] == [0.25]
