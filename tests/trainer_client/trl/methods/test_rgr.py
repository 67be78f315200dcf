"""RGR-GRPO in the trainer: which responses are refined, from what, and their weight in the loss."""

import math

import pytest
import torch

from tests.trainer_client.trl.generating import Prompts, batch, with_server
from tests.trainer_client.trl.judges import FakeJudgeTransport, groups, response, rewarding, stream, summary, verdict
from tests.trainer_client.trl.training import BARE, PLAIN, RIGHT, SLIP, WRONG, dataset, policy, tokenizer, trainer
from trainer_client.losses import shaped_probability
from trainer_client.refine import INSTRUCTION
from trainer_client.trl import RubricReward
from trainer_client.trl.methods import Rgr

pytestmark = pytest.mark.trl

FACTUAL = [{**criterion, "kind": "factual" if criterion["id"] == "answer" else "process"} for criterion in PLAIN]
NO_PENALTY = {"length_penalty": None}


def refining(tmp_path, url, *texts, later=(RIGHT,), **given):
    options = NO_PENALTY | given.pop("method_options", {})
    size = given.pop("room", 2048)
    made = trainer(
        tmp_path, url, data=given.pop("data", dataset(FACTUAL)), method="rgr", method_options=options,
        max_completion_length=64, entropy_coef=0.0, **given,
    )  # fmt: skip
    made.model.config.max_position_embeddings = size
    made.rollout_func = Prompts(*texts, later=later)
    return made


def test_the_last_response_is_refined_from_the_best_one_and_its_failed_criteria(tmp_path, url):
    made = refining(tmp_path, url, WRONG, SLIP, WRONG, WRONG)
    inputs = batch(made)
    _, refined = made.rollout_func.asked
    assert len(refined) == 2
    for prompt, plain in zip(refined, made.train_dataset["prompt"], strict=True):
        assert prompt.startswith(plain)
        assert f"<previous_answer>\n{SLIP}\n</previous_answer>" in prompt
        assert "- The product is 14." in prompt
        assert "- It is 14." in prompt
        assert "The sum is 7." not in prompt
        assert prompt.endswith(INSTRUCTION)
    assert inputs["refined"].tolist() == [False, False, False, True] * 2


def test_a_custom_refinement_instruction_may_be_given(tmp_path, url):
    made = refining(tmp_path, url, WRONG, SLIP, WRONG, WRONG, method_options={"instruction": "Again, in French."})
    batch(made)
    assert all(prompt.endswith("- It is 14.\n\nAgain, in French.") for prompt in made.rollout_func.asked[1])


def test_an_empty_instruction_is_refused():
    with pytest.raises(ValueError, match="instruction is empty; say what a refined response should be"):
        Rgr(instruction=" ")


def test_a_refined_response_trains_on_the_plain_prompt_and_counts_in_the_groups_mean(tmp_path, url):
    made = refining(tmp_path, url, WRONG, SLIP, WRONG, WRONG)
    inputs = batch(made)
    words = tokenizer()
    assert words.decode(inputs["prompt_ids"][3], skip_special_tokens=True) == made.train_dataset["prompt"][0]
    assert words.decode(inputs["completion_ids"][3], skip_special_tokens=True) == RIGHT
    rewards = [0.0, 1 / 3, 0.0, 1.0]
    mean = sum(rewards) / 4
    assert inputs["advantages"].tolist()[:4] == pytest.approx([reward - mean for reward in rewards], abs=1e-5)


def test_a_group_whose_best_response_satisfies_everything_stays_on_policy(tmp_path, url):
    made = refining(tmp_path, url, WRONG, RIGHT, WRONG, SLIP)
    inputs = batch(made)
    assert len(made.rollout_func.asked) == 1
    assert not inputs["refined"].any()
    assert made._metrics["train"]["rgr/satisfied"] == [1.0]


def test_the_last_sample_is_not_assessed(tmp_path, url):
    made = refining(tmp_path, url, WRONG, WRONG, WRONG, RIGHT)
    assert batch(made)["refined"].tolist() == [False, False, False, True] * 2


def test_without_assessment_every_group_is_refined(tmp_path, url):
    made = refining(tmp_path, url, RIGHT, RIGHT, WRONG, WRONG, method_options={"assessment": False})
    assert batch(made)["refined"].tolist() == [False, False, False, True] * 2
    assert "What that answer lacks" not in made.rollout_func.asked[1][0]


def test_factual_criteria_alone_can_be_assessed(tmp_path, url):
    half = "### Step 1: 3+4=7\n\\boxed{14}"
    made = refining(tmp_path, url, half, WRONG, WRONG, WRONG, method_options={"factual_only": True})
    assert not batch(made)["refined"].any()
    made = refining(tmp_path, url, half, WRONG, WRONG, WRONG)
    assert batch(made)["refined"].sum() == 2


def test_a_refinement_that_leaves_no_room_for_a_response_is_skipped_and_counted(tmp_path, url):
    made = refining(tmp_path, url, WRONG, SLIP, WRONG, WRONG, room=200)
    assert not batch(made)["refined"].any()
    assert made._metrics["train"]["rgr/too_long"] == [1.0]


def test_a_group_without_any_reward_stays_on_policy_and_is_counted(tmp_path, unserved_url):
    away = RubricReward(
        unserved_url, preflight=False, wait_for_judge_s=0.0, max_unscored=1.0, deadline_s=0.2, grace_s=0.0
    )
    made = refining(tmp_path, "", WRONG, reward=away)
    inputs = batch(made)
    assert not inputs["refined"].any()
    assert made._metrics["train"]["rgr/unrewarded"] == [1.0]
    assert inputs["completion_mask"].sum() == 0


def test_a_group_without_a_known_failure_stays_on_policy_and_is_counted(tmp_path):
    def answer(body):
        said = response(0.5, verdict("sum", 1.0), verdict("product", None), verdict("answer", 1.0))
        return stream(*groups(body, lambda _: said), summary())

    made = refining(tmp_path, "", WRONG, reward=rewarding(FakeJudgeTransport(answer), on_failure="skip"))
    inputs = batch(made)
    assert not inputs["refined"].any()
    assert len(made.rollout_func.asked) == 1
    assert made._metrics["train"]["rgr/undecided"] == [1.0]
    assert inputs["completion_mask"].sum() > 0


def test_assessment_uses_rewards_before_the_length_penalty(tmp_path, url):
    long = f"### Step 1: 3+4=7\n{'so ' * 30}\n\\boxed{{13}}"
    steep = {"length_penalty": {"coefficient": 0.1, "target_tokens": 10}}
    made = refining(tmp_path, url, long, WRONG, WRONG, WRONG, method_options=steep)
    batch(made)
    assert long.strip() in made.rollout_func.asked[1][0]


def test_a_refined_response_contributes_its_shaped_probability(tmp_path, url):
    made = refining(tmp_path, url, WRONG, SLIP, WRONG, WRONG, later=(RIGHT,))
    inputs = batch(made)
    made.current_gradient_accumulation_steps = 1
    loss = made._compute_loss(made.model, inputs)
    words, model = tokenizer(), policy(tmp_path / "policy")
    expected = 0.0
    for row, advantage in enumerate(inputs["advantages"]):
        prompt = words(made.train_dataset["prompt"][row // 4])["input_ids"]
        said = inputs["completion_ids"][row][inputs["completion_mask"][row].bool()].tolist()
        logits = model(input_ids=torch.tensor([prompt + said])).logits[0, len(prompt) - 1 : -1]
        logps = torch.log_softmax(logits, -1).gather(1, torch.tensor(said).unsqueeze(1)).squeeze(1)
        weight = shaped_probability(logps) if row % 4 == 3 else torch.exp(logps - logps.detach())
        expected = expected - (weight * advantage).sum() / (8 * 64)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    made.model.zero_grad()
    loss.backward()
    expected.backward()
    for ours, theirs in zip(made.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-4)
    assert 0 < made._metrics["train"]["rgr/shaped_weight"][0] < 1


def test_without_shaping_a_refined_response_counts_as_a_sample():
    logps = torch.tensor([[-1.0, -2.0]])
    inputs = {"refined": torch.tensor([True]), "completion_mask": torch.ones(1, 2)}
    assert Rgr(shaping=False).override_loss_inputs(logps, inputs) == {}
    assert Rgr(shaping=False).loss_metrics(logps, inputs) == {}


def test_ratios_are_not_clipped(tmp_path, url):
    made = refining(tmp_path, url, RIGHT, BARE, BARE, BARE)
    inputs = batch(made)
    made.current_gradient_accumulation_steps = 1
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    logps, _, _ = made._get_per_token_logps_and_entropies(made.model, ids, mask, inputs["completion_ids"].size(1))
    inputs["old_per_token_logps"] = logps.detach() - 3.0
    loss = made._compute_loss(made.model, inputs)
    tokens = (inputs["advantages"].unsqueeze(1) * inputs["completion_mask"]).sum()
    assert loss.item() == pytest.approx(-(math.e**3) * tokens.item() / (8 * 64), rel=1e-3)


def test_a_vllm_server_is_asked_for_one_response_per_refinement(tmp_path, url):
    made = refining(tmp_path, url)
    server = with_server(made)
    server.said = [WRONG, RIGHT]
    batch(made)
    (first_count, plain), (count, refinements) = server.asked
    assert (first_count, len(plain)) == (4, 2)
    assert (count, len(refinements)) == (1, 2)
    assert all("<previous_answer>" in prompt for prompt in refinements)


def test_training_runs_and_logs_the_refinements(tmp_path, url):
    made = refining(tmp_path, url, WRONG, SLIP, WRONG, WRONG, max_steps=2)
    made.rollout_func = None
    made.train()
    assert made.state.log_history[0]["rgr/refined"] == 0.25
