"""The measures logged during training equal the functions of `trainer_client.measures`."""

import math

import pytest
import torch

from trainer_client.measures import best_of_n, novelty, pass_at_k, self_bleu
from trainer_client.trl import ScoredGeneration, TrainingMeasures

pytestmark = pytest.mark.trl

REWARDS = [1.0, 0.5, 0.0, -0.5, None, 1.0, 1.0, 0.25]
TEXTS = ["a b c d", "a b c e", "x y", "a b", "one two", "one three", "four", ""]
ROUND = "### Step 1: 3+4=7\n### Step 1: 3+4=7\n"


def generation(rewards=REWARDS, completions=TEXTS, size=4, **more):
    given = {"functions": {}, "first": 0, "off_policy": None, "training": True}
    return ScoredGeneration(rewards=rewards, completions=completions, group_size=size, **given | more)


def measured(given, **options):
    found = TrainingMeasures(**options).on_scored(given)
    assert all(name.startswith("measures/") for name in found)
    return {name.removeprefix("measures/"): value for name, value in found.items()}


def test_pass_at_k_and_the_best_of_k_are_means_over_the_groups():
    found = measured(generation())
    for k in (1, 2):
        assert found[f"pass_at_{k}"] == pytest.approx((pass_at_k(4, 1, k) + pass_at_k(3, 2, k)) / 2)
        assert found[f"best_of_{k}"] == pytest.approx((best_of_n(REWARDS[:4], k) + best_of_n(REWARDS[4:], k)) / 2)


def test_a_group_with_fewer_rewards_than_k_is_left_out():
    found = measured(generation())
    assert found["pass_at_4"] == 1.0
    assert found["best_of_4"] == best_of_n(REWARDS[:4], 4)


def test_a_k_above_the_group_size_is_not_measured():
    assert {name for name in measured(generation()) if "_at_" in name} == {"pass_at_1", "pass_at_2", "pass_at_4"}
    assert "pass_at_3" in measured(generation(), ks=(3,))


def test_the_share_of_zero_rewards_ignores_missing_ones():
    assert measured(generation())["zero_rewards"] == pytest.approx(2 / 7)


def test_without_rewards_no_reward_measures_are_logged():
    assert set(measured(generation([None] * 8))) == {"loops", "diversity"}


def test_a_reward_that_float32_rounds_down_still_reaches_the_threshold():
    given = generation([torch.tensor(0.7).item()] * 8)
    assert given.rewards[0] < 0.7
    assert measured(given, threshold=0.7)["pass_at_1"] == 1.0
    assert measured(given, threshold=0.71)["pass_at_1"] == 0.0


def test_another_function_can_define_what_is_right():
    functions = {"RubricReward": [1.0] * 8, "right": [0.0, 0.0, 1.0, 1.0, None, None, 0.0, 0.0]}
    found = measured(generation(functions=functions), correct="right")
    assert found["pass_at_2"] == pytest.approx((pass_at_k(4, 2, 2) + pass_at_k(2, 0, 2)) / 2)
    assert found["best_of_1"] == pytest.approx((best_of_n(REWARDS[:4], 1) + best_of_n(REWARDS[4:], 1)) / 2)


def test_an_unknown_function_is_refused():
    with pytest.raises(ValueError, match=r"correct is 'wright', which is not .* are RubricReward, right"):
        measured(generation(functions={"RubricReward": [], "right": []}), correct="wright")


@pytest.mark.parametrize(("groups", "expected"), [(1, [0]), (2, [0, 4]), (9, [0, 4]), (0, [])])
def test_diversity_covers_the_first_groups_only(groups, expected):
    found = measured(generation(), diversity_groups=groups)
    values = [1 - self_bleu(TEXTS[start : start + 4]) for start in expected]
    assert found.get("diversity") == (pytest.approx(sum(values) / len(values)) if values else None)


def test_a_rank_contributes_its_texts_of_the_first_groups():
    assert measured(generation(first=2), diversity_groups=1)["diversity"] == pytest.approx(1 - self_bleu(TEXTS[:2]))
    assert "diversity" not in measured(generation(first=4), diversity_groups=1)


def test_a_group_of_one_has_no_diversity():
    assert "diversity" not in measured(generation(size=1))


def test_for_messages_the_assistants_texts_are_measured():
    messages = [
        [
            {"role": "assistant", "content": text[:10], "tool_calls": []},
            {"role": "tool", "content": ROUND},
            {"role": "assistant", "content": None},
            {"role": "assistant", "content": text[10:]},
        ]
        for text in TEXTS
    ]
    joined = [f"{text[:10]}\n\n{text[10:]}" for text in TEXTS]
    assert measured(generation(completions=messages)) == measured(generation(completions=joined))


def test_the_share_of_looping_responses_is_logged():
    completions = [ROUND, *TEXTS[1:6], ROUND, "wait " * 21]
    assert measured(generation(completions=completions))["loops"] == pytest.approx(3 / 8)
    assert "loops" not in measured(generation(completions=completions), loops=False)


def test_responses_to_other_prompts_count_as_off_policy_where_possible():
    assert measured(generation(off_policy=[True, False, False, True] * 2))["off_policy"] == 0.5
    assert measured(generation(off_policy=[False] * 8))["off_policy"] == 0.0
    assert "off_policy" not in measured(generation())


def likelihoods(rows, seed):
    """Log-probabilities of the policy and of the reference, and a mask that excludes last tokens and one whole row."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.ones(rows, 5, dtype=torch.long)
    mask[0, 3:] = 0
    mask[-1] = 0
    new, old = (-3 * torch.rand(rows, 5, generator=generator) for _ in range(2))
    return new, {"ref_per_token_logps": old, "completion_mask": mask}


def expected_novelty(*batches):
    pairs = []
    for new, inputs in batches:
        for row, mask in enumerate(inputs["completion_mask"].bool()):
            if mask.any():
                pairs.append([side[row][mask].double().mean().item() for side in (new, inputs["ref_per_token_logps"])])
    found = novelty(*zip(*pairs, strict=True))
    shares = {f"measures/novelty/above_{limit}": count / len(pairs) for limit, count in found.counts.items()}
    return {"measures/novelty/mean": found.mean, "measures/novelty/median": found.median} | shares


def test_novelty_is_computed_for_a_whole_generation_batch_at_its_last_loss():
    measures = TrainingMeasures()
    for seed in (1, 3):  # once for each generation batch
        batches = [likelihoods(4, seed), likelihoods(4, seed + 1)]
        measures.on_scored(generation())
        assert measures.on_loss(*batches[0], True) == {}
        assert measures.on_loss(*batches[1], True) == pytest.approx(expected_novelty(*batches), abs=1e-6)
        assert measures.on_loss(*batches[0], True) == {}  # another iteration over the same responses


def test_an_evaluation_between_losses_is_measured_separately():
    measures = TrainingMeasures()
    batches = [likelihoods(4, 1), likelihoods(4, 2)]
    measures.on_scored(generation())
    measures.on_loss(*batches[0], True)
    measures.on_scored(generation(training=False, completions=TEXTS[:4]))
    assert measures.on_loss(*batches[1], False) == pytest.approx(expected_novelty(batches[1]), abs=1e-6)
    assert measures.on_loss(*batches[1], True) == pytest.approx(expected_novelty(*batches), abs=1e-6)


def test_tool_tokens_do_not_count_in_novelty():
    new, inputs = likelihoods(8, 1)
    tools = torch.ones(8, 5, dtype=torch.long)
    tools[:, 1] = 0
    measures = TrainingMeasures()
    measures.on_scored(generation())
    found = measures.on_loss(new, inputs | {"tool_mask": tools}, True)
    expected = expected_novelty((new, inputs | {"completion_mask": inputs["completion_mask"] * tools}))
    assert found == pytest.approx(expected, abs=1e-6)


def test_a_likelihood_that_is_not_finite_is_ignored():
    new, inputs = likelihoods(8, 1)
    new[1, 0], inputs["ref_per_token_logps"][2, 0] = math.nan, -math.inf
    measures = TrainingMeasures()
    measures.on_scored(generation())
    kept = [0, *range(3, 8)]
    expected = expected_novelty((new[kept], {name: values[kept] for name, values in inputs.items()}))
    assert measures.on_loss(new, inputs, True) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("switched", [True, False])
def test_novelty_is_measured_only_if_enabled_and_with_a_reference_model(switched):
    new, inputs = likelihoods(8, 1)
    del inputs["ref_per_token_logps"]
    measures = TrainingMeasures()
    measures.on_scored(generation())
    assert measures.on_loss(new, inputs, True) == {}
    measures = TrainingMeasures(novelty=False)
    measures.on_scored(generation())
    assert measures.on_loss(*likelihoods(8, 1), True) == {}


def test_responses_all_excluded_from_the_loss_have_no_novelty():
    new, inputs = likelihoods(8, 1)
    measures = TrainingMeasures()
    measures.on_scored(generation())
    assert measures.on_loss(new, inputs | {"completion_mask": torch.zeros(8, 5)}, True) == {}


@pytest.mark.parametrize("options", [{"ks": (0, 1)}, {"diversity_groups": -1}, {"threshold": math.nan}])
def test_numbers_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match="at least 1, diversity_groups must not be negative"):
        TrainingMeasures(**options)
