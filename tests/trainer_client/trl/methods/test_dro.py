"""DRO in the trainer: the certainty of a frozen model, the gates, and the saved state."""

import asyncio
import dataclasses

import pytest
import torch

from tests.trainer_client.trl.generating import Prompts, batch
from tests.trainer_client.trl.judges import Trainer
from tests.trainer_client.trl.methods.certain import certainties
from tests.trainer_client.trl.training import dataset, policy, tokenizer, trainer
from trainer_client import Client
from trainer_client.advantages import group_advantages
from trainer_client.dro import RollingThreshold, reasoning_reflection_reward
from trainer_client.errors import InvalidRequest
from trainer_client.trl import RubricReward
from trainer_client.trl.methods import Dro, Rollout
from trainer_client.trl.rollouts.certainty import Reflection, reference_probabilities

pytestmark = pytest.mark.trl

TEXTS = [
    "It is 3+4=7, doubled.\nFinal answer: 14",
    "Who knows?\nFinal answer: 15",
    "Final answer: 14",
    "no idea at all",
]
REASONING = ["It is 3+4=7, doubled.\n", "Who knows?\n", "", "no idea at all"]
REFERENCE = "Final answer: 14"
ANSWER = [
    {"id": "fourteen", "description": "It says 14.", "verification": {"method": "contains", "all_of": ["14"]}},
    {"id": "final", "description": "It is final.", "verification": {"method": "contains", "all_of": ["Final"]}},
]
NEVER = {"id": "never", "description": "-", "verification": {"method": "contains", "all_of": ["never said"]}}


def reflecting(tmp_path, url, *texts, references=(REFERENCE, REFERENCE), rewards=(), reward=None, **given):
    # an untrained model's probabilities are all below the default clip
    options = {"variance_filter": False, "p_min": 0.0, "p_max": 1.0, **given.pop("method_options", {})}
    columns = {"reference_answer": list(references), **given.pop("columns", {})}
    data = dataset(given.pop("criteria", ANSWER), **columns)
    data = data.rename_columns(given.pop("renamed", {}))
    made = trainer(
        tmp_path, url, data=data, method="dro", method_options=options, rewards=rewards, reward=reward,
        **{"num_generations": 4, "mask_truncated_completions": False, **given},
    )  # fmt: skip
    made.rollout_func = Prompts(*(texts or TEXTS))
    return made


@pytest.mark.parametrize("reasonings", [["one", "another and longer"], ["", "x"], [""]])
@pytest.mark.parametrize("prompt", ["a prompt", "p"])
def test_certainties_equal_those_of_a_forward_pass_each(tmp_path, prompt, reasonings):
    words, model = tokenizer(), policy(tmp_path / "policy").eval()
    ids = [words(text)["input_ids"] for text in reasonings]
    got = reference_probabilities(
        model, words(prompt)["input_ids"], ids, words(REFERENCE)["input_ids"], words.pad_token_id
    )
    expected = torch.tensor(certainties(tmp_path, prompt, reasonings, REFERENCE))
    torch.testing.assert_close(got, expected, atol=1e-7, rtol=1e-4)


def test_advantages_use_the_frozen_models_certainty_after_the_reasoning(tmp_path, url):
    made = reflecting(tmp_path, url)
    inputs = batch(made)
    for place, prompt in enumerate(made.train_dataset["prompt"]):
        rewards, _ = reasoning_reflection_reward(
            certainties(tmp_path, prompt, REASONING, REFERENCE), p_min=0.0, p_max=1.0
        )
        own = inputs["advantages"].tolist()[4 * place : 4 * place + 4]
        assert own == pytest.approx(group_advantages(rewards, ddof=1), abs=1e-2)


def test_the_frozen_model_stays_unchanged_while_the_policy_learns(tmp_path, url):
    made = reflecting(tmp_path, url, max_steps=2, learning_rate=50.0, warmup_steps=0)
    made.train()
    before = certainties(tmp_path, made.train_dataset["prompt"][0], REASONING, REFERENCE)
    rewards, _ = reasoning_reflection_reward(before, p_min=0, p_max=1)
    again = [row.certainty for row in made._local_rollouts[:4]]
    assert reasoning_reflection_reward(again, p_min=0, p_max=1)[0] == pytest.approx(rewards, abs=1e-6)
    with torch.no_grad():
        moved = made.model(input_ids=torch.tensor([[5, 6]])).logits
        still = policy(tmp_path / "policy")(input_ids=torch.tensor([[5, 6]])).logits
    assert (moved - still).abs().max() > 1e-3


def test_the_judge_sees_only_the_final_answers(tmp_path, url):
    made = reflecting(tmp_path, url)
    batch(made)
    assert [row.text for row in made.rubric_reward.last.rows[:4]] == [
        "Final answer: 14", "Final answer: 15", "Final answer: 14", "no idea at all",
    ]  # fmt: skip


TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<think>\n{% endif %}"


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("3+4=7, doubled.\n</think>\nFinal answer: 14", "Final answer: 14"),
        ("<think>\nIt is 14, the Final one.\n</think>\nno idea", "no idea"),
        ("Is it 14? Finally", ""),  # it never stops thinking
    ],
)
def test_the_judge_sees_the_final_answer_behind_a_block_that_the_chat_template_opens(tmp_path, url, said, answer):
    made, words = reflecting(tmp_path, url), tokenizer()
    words.chat_template = TEMPLATE
    caller = Trainer([made.rubric_reward], processing_class=words)
    asked, response = [{"role": "user", "content": "2*(3+4)"}], [{"role": "assistant", "content": said}]
    asyncio.run(made.rubric_reward([asked], [response], rubric=[ANSWER], **caller.logs))
    [row] = made.rubric_reward.last.rows
    assert row.text == answer
    assert row.answer.reward == float("14" in answer)


def test_an_answer_that_a_rule_of_ones_own_finds_behind_such_a_block_is_judged(tmp_path, url):
    made = reflecting(tmp_path, url, method_options={"answer_rule": lambda text: text.index("So ")})
    said = "Is it 14?</think> Finally, no. So 14, Final"
    asyncio.run(made.rubric_reward(["2*(3+4) <think>"], [said], rubric=[ANSWER]))
    [row] = made.rubric_reward.last.rows
    assert row.text == "Is it 14?</think> So 14, Final"
    assert [verdict.score for verdict in row.answer.verdicts] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("one", "options"), [({"shadow": True}, {}), ({"kind": "process"}, {"kinds": ["point"]})], ids=["shadow", "kinds"]
)
@pytest.mark.parametrize("referenced", [False, True])
def test_criteria_that_are_not_rewarded_close_no_gate(tmp_path, url, one, options, referenced):
    criteria, reward = [*ANSWER, NEVER | one], RubricReward(url, preflight=False, **options)
    columns = {}
    if referenced:
        with Client(url) as client:
            published = client.publish_rubric(f"tests/gates-{'-'.join(one)}", criteria)
        columns["rubric"] = [published.name] * 2
    made = reflecting(tmp_path, url, criteria=criteria, reward=reward, columns=columns)
    batch(made)
    assert made._metrics["train"]["dro/accepted"] == [1.0]


def test_a_group_that_fails_a_gate_gives_no_gradient(tmp_path, url):
    made = reflecting(tmp_path, url, criteria=[*ANSWER, NEVER])
    inputs = batch(made)
    assert inputs["completion_mask"].sum() == 0
    assert made._metrics["train"]["dro/coverage"] == [1.0]
    assert made._metrics["train"]["dro/accepted"] == [0.0]


def test_without_gates_such_a_group_gives_a_gradient(tmp_path, url):
    made = reflecting(tmp_path, url, criteria=[NEVER], method_options={"gates": False})
    assert batch(made)["completion_mask"].sum() > 0


def test_an_undecided_group_gives_no_gradient_and_is_counted_separately(tmp_path, unserved_url):
    away = RubricReward(
        unserved_url, preflight=False, wait_for_judge_s=0.0, max_unscored=1.0, deadline_s=0.2, grace_s=0.0
    )
    made = reflecting(tmp_path, "", reward=away)
    assert batch(made)["completion_mask"].sum() == 0
    assert made._metrics["train"]["dro/undecided"] == [1.0]


def test_r3_works_without_a_judge(tmp_path, url):
    made = reflecting(tmp_path, url, reward=lambda prompts, **_: [0.0] * len(prompts))
    assert batch(made)["completion_mask"].sum() > 0
    assert made._metrics["train"]["dro/accepted"] == [1.0]


@pytest.mark.parametrize("numbers", [(0, 7), (0.0, 14.0)])
def test_a_numeric_reference_answer_is_formatted_as_written_by_hand(tmp_path, url, numbers):
    made = reflecting(tmp_path, url, references=numbers, reward=lambda prompts, **_: [0.0] * len(prompts))
    batch(made)
    expected = certainties(tmp_path, made.train_dataset["prompt"][0], REASONING, "0")
    assert [rollout.certainty for rollout in made._local_rollouts[:4]] == [
        pytest.approx(row, rel=1e-4) for row in expected
    ]


def test_a_reference_answer_that_is_neither_text_nor_a_number_is_refused_with_its_row(tmp_path, url):
    made = reflecting(tmp_path, url, references=(["14"], ["7"]), reward=lambda prompts, **_: [0.0] * len(prompts))
    with pytest.raises(InvalidRequest, match="row 0: reference_answer is of type list; it must be text or a number"):
        batch(made)


def test_a_reference_answer_is_tokenized_separately_from_the_reasoning(tmp_path):
    words, prompt, reasonings = tokenizer(("1", "1")), "(0+3)*2=?\n", ["It is 1", "who knows?"]
    reference, said = words("14")["input_ids"], [words(text)["input_ids"] for text in reasonings]
    assert words("It is 114")["input_ids"] != said[0] + reference
    model, reflection = policy(tmp_path / "policy", words=words).eval(), Reflection(words)
    assert reflection.reference_tokens(" 14 ") == reference
    found = reflection.measure_certainty(model, words(prompt)["input_ids"], said, reference)
    expected = certainties(tmp_path, prompt, reasonings, "14", words)
    assert [one.certainty for one in found] == [pytest.approx(row, rel=1e-4) for row in expected]


def test_a_reference_answer_may_have_another_name_in_the_dataset_as_the_reward_function_says(tmp_path, url):
    renaming = RubricReward(url, preflight=False, columns={"reference_answer": "ideal"})
    inputs = batch(reflecting(tmp_path, url, reward=renaming, renamed={"reference_answer": "ideal"}))
    assert inputs["advantages"].tolist() == batch(reflecting(tmp_path, url))["advantages"].tolist()
    assert inputs["advantages"].any()


def test_a_reference_answer_that_the_judge_must_not_see_is_still_reflected_on(tmp_path, url):
    hiding = RubricReward(url, preflight=False, columns={"reference_answer": None})
    assert batch(reflecting(tmp_path, url, reward=hiding))["advantages"].any()


@pytest.mark.parametrize("nothing", ["", "   ", None])
def test_a_row_without_a_reference_answer_has_no_reward(tmp_path, url, nothing):
    made = reflecting(tmp_path, url, references=(REFERENCE, nothing))
    inputs = batch(made)
    assert inputs["completion_mask"][:4].sum() > 0
    assert inputs["completion_mask"][4:].sum() == 0
    assert made._metrics["train"]["dro/unscored"] == [0.5]


@pytest.mark.parametrize("name", ["average_probability", "average_log_probability", "rouge_l"])
def test_the_baselines_are_options(tmp_path, url, name):
    made = reflecting(tmp_path, url, method_options={"reward": name})
    inputs = batch(made)
    rewards = Dro(reward=name).rewards(made._local_rollouts[:4])
    assert inputs["advantages"].tolist()[:4] == pytest.approx(group_advantages(rewards, ddof=1), abs=1e-2)
    if name == "rouge_l":
        assert rewards[0] == 1.0
        assert 0 <= rewards[3] < 1


def test_the_frozen_model_is_trls_reference_model_if_there_is_one(tmp_path, url):
    made = reflecting(tmp_path, url, beta=0.1)
    batch(made)
    assert made.frozen_policy.model is made.ref_model


def test_the_state_of_the_filter_is_in_the_checkpoint(tmp_path, url):
    options = {"variance_filter": True, "every": 2}
    settings = {"max_steps": 4, "save_steps": 2, "save_strategy": "steps", "method_options": options}
    whole = reflecting(tmp_path, url, **settings)
    whole.train()
    assert isinstance(whole._memory, RollingThreshold)
    assert whole._memory.threshold is not None
    again = reflecting(tmp_path, url, **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert dataclasses.astuple(again._memory) == dataclasses.astuple(whole._memory)


def rollouts(*rows, scores=()):
    return [Rollout(tokens=3, certainty=tuple(row), scores=scores) for row in rows]


def test_a_group_of_one_is_never_filtered_and_has_no_advantage():
    method = Dro()
    (alone,) = method.advantages(rollouts([0.5, 0.6]))
    assert float(alone) == 0
    assert method.group_status(rollouts([0.5, 0.6]), RollingThreshold(threshold=0.9)) == "accepted"


def test_a_window_without_groups_leaves_the_threshold_unchanged():
    method = Dro(every=1)
    memory = RollingThreshold(every=1, threshold=0.3)
    assert method.update_memory(memory, [rollouts([])]).threshold == 0.3
    assert method.metrics([rollouts([])], memory) == {
        **dict.fromkeys(
            (f"dro/{name}" for name in ("accepted", "coverage", "consistency", "undecided", "variance")), 0
        ),
        "dro/unscored": 1.0,
        "dro/threshold": 0.3,
    }


def test_groups_below_the_variance_threshold_are_rejected():
    calm, lively = rollouts([0.5], [0.51]), rollouts([0.1], [0.9])
    memory = RollingThreshold(threshold=0.2)
    assert [Dro().group_status(group, memory) for group in (calm, lively)] == ["variance", "accepted"]
    assert Dro(variance_filter=False).group_status(calm, memory) == "accepted"


def test_an_answer_without_verdicts_is_missing_every_criterion():
    satisfied = [Rollout(tokens=3, certainty=(0.9,), scores=(1.0, 1.0)), Rollout(tokens=3, certainty=(0.1,))]
    assert Dro().group_status(satisfied, RollingThreshold()) == "accepted"
    unknown = [Rollout(tokens=3, certainty=(0.9,)), Rollout(tokens=3, certainty=(0.1,), scores=(0.0, 1.0))]
    assert Dro().group_status(unknown, RollingThreshold()) == "undecided"
