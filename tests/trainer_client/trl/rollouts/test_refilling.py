"""Dynamic sampling with refills: groups of other prompts replace uninformative ones."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer_client.trl.judges import FakeJudgeTransport, by_text, groups, response, rewarding, stream, summary
from tests.trainer_client.trl.training import CRITERIA, PLAIN, RIGHT, SLIP, WRONG, dataset, trainer, weights
from trainer_client import Client
from trainer_client.trl import EvolvingRubrics, RubricReward
from trainer_client.trl.rollouts.refilling import PromptStream

pytestmark = pytest.mark.trl

MIXED = (RIGHT, WRONG, RIGHT, WRONG)
ALL_RIGHT, ALL_WRONG = (RIGHT,) * 4, (WRONG,) * 4
UNLIKE_BUT_WRONG = (WRONG, SLIP, WRONG, SLIP)
DYNAMIC = {"dynamic_sampling": True}


class ByPrompt:
    """A rollout function: the n-th prompt's group returns the n-th texts; records every call."""

    def __init__(self, *groups, added=False):
        self.groups, self.added, self.calls = groups, added, []

    def __call__(self, prompts, trainer):
        words = trainer.processing_class
        numbers = [int(prompt[1 : prompt.index("+")]) for prompt in prompts]
        self.calls.append(numbers[::4])
        ids = [
            [*words(self.groups[number % len(self.groups)][place % 4])["input_ids"], words.eos_token_id]
            for place, number in enumerate(numbers)
        ]
        more = {"number": numbers, "call": len(self.calls)} if self.added else {}
        return {
            "prompt_ids": [words(prompt)["input_ids"] for prompt in prompts],
            "completion_ids": ids,
            "logprobs": [[0.0] * len(row) for row in ids],
            **more,
        }


def made(tmp_path, url, rollouts, *, data=None, options=DYNAMIC, **given):
    data = dataset(PLAIN, prompts=len(rollouts.groups)) if data is None else data
    given = {"method": "rubric", "max_refill_rounds": 5, "method_options": options, **given}
    trained = trainer(tmp_path, url, data=data, **given)
    trained.rollout_func = rollouts
    return trained


def batch(trained, numbers=(0, 1)):
    """Generate a batch that begins with these prompts; return it and the prompts it ends with."""
    trained.model.train()
    output = trained._generate_and_score_completions([dict(trained.train_dataset[n]) for n in numbers for _ in "1234"])
    prompts = trained.processing_class.batch_decode(output["prompt_ids"], skip_special_tokens=True)
    return output, [int(prompt[1 : prompt.index("+")]) for prompt in prompts]


def logged(trained, name):
    return trained._metrics["train"][f"refill/{name}"][-1]


def test_an_uninformative_group_is_replaced_by_another_prompts(tmp_path, url):
    rollouts = ByPrompt(ALL_RIGHT, MIXED, MIXED)
    trained = made(tmp_path, url, rollouts)
    output, prompts = batch(trained)
    assert rollouts.calls == [[0, 1], [2]]
    assert prompts == [2] * 4 + [1] * 4
    assert (output["completion_mask"].sum(dim=1) > 0).all()
    assert [1 if a > 0 else -1 for a in output["advantages"].tolist()] == [1, -1] * 4
    assert output["completion_mask"].sum() == output["num_items_in_batch"]
    numbers = {name: logged(trained, name) for name in ("rounds", "sampled", "informative", "left")}
    assert numbers == {"rounds": 1.0, "sampled": 1.5, "informative": pytest.approx(2 / 3), "left": 0.0}
    assert [prompt[1] for prompt in trained._logs["prompt"]] == ["2"] * 4 + ["1"] * 4


def test_a_batch_of_informative_groups_is_left_unchanged(tmp_path, url):
    rollouts = ByPrompt(MIXED, MIXED, ALL_RIGHT)
    trained = made(tmp_path, url, rollouts)
    assert batch(trained)[1] == [0] * 4 + [1] * 4
    assert rollouts.calls == [[0, 1]]
    assert logged(trained, "rounds") == 0.0


def test_a_refilled_batch_equals_the_batch_of_its_final_prompts(tmp_path, url):
    groups = (ALL_RIGHT, MIXED, (RIGHT, SLIP, WRONG, WRONG))
    options = {"method": "srar", "method_options": {"dynamic_sampling": True}}
    data = dataset(CRITERIA, prompts=3)
    refilled, prompts = batch(made(tmp_path, url, ByPrompt(*groups), data=data, **options))
    assert prompts == [2] * 4 + [1] * 4
    whole, _ = batch(made(tmp_path, url, ByPrompt(*groups), data=data, **options, max_refill_rounds=0), (2, 1))
    assert refilled.keys() == whole.keys()
    for name, value in whole.items():
        assert refilled[name].tolist() == value.tolist(), name


@pytest.mark.parametrize(("rounds", "left"), [(1, 1.0), (2, 1.0), (0, None)])
def test_rounds_are_limited_and_remaining_groups_are_excluded_from_the_loss(tmp_path, url, rounds, left):
    rollouts = ByPrompt(*[ALL_WRONG] * 20)
    trained = made(tmp_path, url, rollouts, max_refill_rounds=rounds)
    output, prompts = batch(trained)
    assert len(rollouts.calls) == 1 + rounds
    assert output["completion_mask"].sum() == 0
    assert prompts == [0] * 4 + [1] * 4
    assert left is None or logged(trained, "left") == left


def test_a_prompt_is_tried_once_per_batch(tmp_path, url):
    rollouts = ByPrompt(*[ALL_WRONG] * 5)
    batch(made(tmp_path, url, rollouts, max_refill_rounds=50))
    assert sorted(chain(*rollouts.calls)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("metric", "first"), [("reward", 0), ("accuracy", 2)])
def test_groups_are_compared_by_reward_or_by_accuracy(tmp_path, url, metric, first):
    trained = made(
        tmp_path, url, ByPrompt(UNLIKE_BUT_WRONG, MIXED, MIXED), data=dataset(CRITERIA, prompts=3),
        options={**DYNAMIC, "filter_metric": metric}, method="srar",
    )  # fmt: skip
    assert batch(trained)[1][0] == first


def test_in_outcome_mode_the_judges_reward_decides_what_is_right(tmp_path, url):
    trained = made(
        tmp_path, url, ByPrompt(ALL_RIGHT, MIXED, MIXED), reward=RubricReward(url, mode="outcome"),
        options={**DYNAMIC, "filter_metric": "accuracy"},
    )  # fmt: skip
    assert batch(trained)[1] == [2] * 4 + [1] * 4


def test_rubrics_evolve_by_the_responses_of_every_round(tmp_path, url):
    texts = [MIXED, ALL_RIGHT, ALL_WRONG, (WRONG, RIGHT, WRONG, WRONG)]
    with Client(url) as client:
        names = [client.publish_rubric(f"tests/refilled-{n}", CRITERIA[3:]).name for n in range(4)]
    options = {**DYNAMIC, "filter_metric": "accuracy"}
    rollouts = ByPrompt(*texts)
    trained = made(tmp_path, url, rollouts, data=dataset(prompts=4, rubric=names), options=options)
    evolving = EvolvingRubrics(url, every_n_steps=100)
    trained.add_callback(evolving)
    assert batch(trained)[1] == [0] * 4 + [3] * 4
    correct = {one["reference"]: one["correct"] for one in evolving.state()["groups"]}
    tried = {number for numbers in rollouts.calls for number in numbers}
    assert correct == {names[n]: [text == RIGHT for text in texts[n]] for n in tried}


SURE = ("It is 3+4=7.\nFinal answer: 14", "Who knows?\nFinal answer: 15", "Final answer: 14", "Or 7.\nFinal answer: 2")
WITHOUT_ANSWER = ("no", "none", "no idea", "no idea at all")
FINAL = [{"id": "final", "description": "It is final.", "verification": {"method": "contains", "all_of": ["Final"]}}]


def test_groups_rejected_by_dros_gates_are_replaced_by_other_prompts(tmp_path, url):
    rollouts = ByPrompt(WITHOUT_ANSWER, SURE, WITHOUT_ANSWER, SURE)
    options = {"variance_filter": False, "p_min": 0.0, "p_max": 1.0}
    given = {"method": "dro", "num_generations": 4, "mask_truncated_completions": False}

    def of(rollouts, numbers, **more):
        data = dataset(FINAL, prompts=4, reference_answer=["Final answer: 14"] * 4)
        trained = made(
            tmp_path, url, rollouts, data=data, options={**options, **more.pop("options", {})}, **given, **more
        )
        return trained, *batch(trained, numbers)

    trained, refilled, prompts = of(rollouts, (0, 1), options=DYNAMIC)
    assert rollouts.calls[0] == [0, 1]
    assert prompts == [3] * 4 + [1] * 4
    assert logged(trained, "left") == 0.0
    # the result equals that of these prompts alone: their own certainties, after their own reasoning
    _, whole, _ = of(ByPrompt(WITHOUT_ANSWER, SURE, WITHOUT_ANSWER, SURE), (3, 1), max_refill_rounds=0)
    assert refilled["advantages"].tolist() == pytest.approx(whole["advantages"].tolist(), abs=1e-5)
    assert refilled["advantages"].abs().max() > 0


def test_under_ruscarl_replacement_groups_get_scaffolds_and_train_on_plain_prompts(tmp_path, url):
    class Scaffolded(ByPrompt):
        def __call__(self, prompts, trainer):
            self.asked = [*getattr(self, "asked", []), list(prompts)]
            return super().__call__(prompts, trainer)

    rollouts = Scaffolded(ALL_RIGHT, MIXED, MIXED)
    options = {**DYNAMIC, "pattern": "binary", "full": 2, "decay": "constant", "weights": False}
    trained = made(
        tmp_path,
        url,
        rollouts,
        data=dataset(PLAIN, prompts=3),
        options=options,
        method="ruscarl",
        max_steps=10,
        max_completion_length=16,
    )
    output, prompts = batch(trained)
    assert rollouts.calls == [[0, 1], [2]]
    assert prompts == [2] * 4 + [1] * 4
    plain = trained.train_dataset["prompt"]
    assert [prompt != plain[2] for prompt in rollouts.asked[1]] == [True, True, False, False]
    assert all(prompt.startswith(plain[2]) for prompt in rollouts.asked[1])
    texts = trained.processing_class.batch_decode(output["prompt_ids"], skip_special_tokens=True)
    assert texts == [plain[2]] * 4 + [plain[1]] * 4
    assert [1 if a > 0 else -1 for a in output["advantages"].tolist()] == [1, -1] * 4


def test_every_response_is_scored_once_with_its_own_columns(tmp_path, url):
    seen = []

    def tells(prompts, completions, number, call, log_extra, **_):
        assert [int(prompt[1]) for prompt in prompts] == number
        seen.extend(zip(number, completions, [call[0]] * len(prompts), strict=True))
        log_extra("number", number)
        return [float(one) for one in number]

    rollouts = ByPrompt(ALL_RIGHT, MIXED, MIXED, added=True)
    trained = made(tmp_path, url, rollouts, rewards=[tells])
    batch(trained)
    assert len(seen) == 4 * len(list(chain(*rollouts.calls)))
    assert list(trained._logs["extra"]["number"]) == [2] * 4 + [1] * 4
    assert list(trained._logs["rewards"]["tells"]) == [2.0] * 4 + [1.0] * 4


def test_evaluation_is_never_refilled(tmp_path, url):
    rollouts = ByPrompt(ALL_RIGHT, MIXED, MIXED)
    trained = made(tmp_path, url, rollouts)
    trained.model.eval()
    trained._generate_and_score_completions([dict(trained.train_dataset[n]) for n in (0, 1) for _ in range(4)])
    assert rollouts.calls == [[0, 1]]


def test_an_unreachable_judge_ends_the_rounds(tmp_path, unserved_url):
    rollouts = ByPrompt(*[MIXED] * 6)
    away = RubricReward(
        unserved_url, preflight=False, wait_for_judge_s=0.0, max_unscored=1.0, deadline_s=0.2, grace_s=0.0
    )
    trained = made(tmp_path, "", rollouts, reward=away)
    output, _ = batch(trained)
    assert rollouts.calls == [[0, 1]]
    assert output["completion_mask"].sum() == 0


def test_missing_rewards_of_a_small_round_count_as_a_share_of_the_whole_batch(tmp_path):
    def reward(said):
        return response(None) if said["text"] == "lost" else by_text(said)

    judge = FakeJudgeTransport(lambda body: stream(*groups(body, reward), summary()))
    ones, both, lost = ("1",) * 4, ("1", "0", "1", "0"), ("lost",) * 4
    rollouts = ByPrompt(ones, both, both, both, lost, lost)
    data = dataset(PLAIN, prompts=6)
    judged = rewarding(judge, max_unscored=0.5)
    trained = made(tmp_path, "", rollouts, data=data, reward=judged, per_device_train_batch_size=16)
    batch(trained, (0, 1, 2, 3))
    assert sorted(rollouts.calls[1]) == [4, 5]
    assert logged(trained, "left") == 0.25


def test_refilling_does_not_change_trls_order_of_prompts(tmp_path, url):
    def firsts(**given):
        rollouts = ByPrompt(ALL_RIGHT, MIXED, ALL_WRONG, MIXED, MIXED, MIXED)
        trained = made(tmp_path, url, rollouts, max_steps=6, shuffle_dataset=True, **given)
        own, sample = [], trained._generation.sample
        trained._generation.sample = lambda prompts, inputs, generate: (
            own.append((trained.state.global_step, prompts[0])),
            sample(prompts, inputs, generate),
        )[1]
        trained.train()
        return dict(reversed(own)), rollouts.calls

    plain, _ = firsts(max_refill_rounds=0)
    refilled, calls = firsts()
    assert refilled == plain
    assert len(calls) > 6


def test_a_resumed_run_continues_with_the_same_replacement_prompts(tmp_path, url):
    groups = (ALL_RIGHT, MIXED, ALL_WRONG, MIXED, ALL_RIGHT, (RIGHT, RIGHT, SLIP, WRONG), MIXED, ALL_WRONG)
    given = {
        "max_steps": 4, "save_steps": 2, "save_strategy": "steps", "shuffle_dataset": True, "optim": "adamw_torch",
        "learning_rate": 1e-2,
    }  # fmt: skip
    once, again = ByPrompt(*groups), ByPrompt(*groups)
    whole = made(tmp_path, url, once, **given)
    whole.train()
    resumed = made(tmp_path, url, again, **given)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert again.calls == once.calls[-len(again.calls) :]
    assert resumed._refiller.stream.drawn == whole._refiller.stream.drawn > 0
    assert (weights(resumed.model) == weights(whole.model)).all()


@given(st.integers(1, 30), st.integers(0, 5), st.lists(st.integers(1, 8), max_size=12))
def test_a_stream_draws_all_rows_before_it_repeats_one(rows, seed, counts):
    stream = PromptStream(rows, seed)
    drawn = [row for count in counts for row in stream.draw(count, lambda _: True)]
    for start in range(0, len(drawn), rows):
        part = drawn[start : start + rows]
        assert len(set(part)) == len(part)
    continued = PromptStream(rows, seed)
    continued.drawn = stream.drawn
    assert continued.draw(3, lambda _: True) == stream.draw(3, lambda _: True)


@given(st.integers(0, 10), st.sets(st.integers(0, 9)))
def test_a_stream_draws_accepted_rows_and_ends_when_none_are_left(count, accepted):
    stream = PromptStream(10, 1)
    drawn = stream.draw(count, accepted.__contains__)
    assert set(drawn) <= accepted
    assert len(drawn) == min(count, len(accepted))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_refill_rounds": -1}, "max_refill_rounds is -1"),
        ({"method_options": {}}, "leaves no groups out, so there is nothing to refill; set method_options"),
    ],
)
def test_settings_that_do_not_support_refilling_are_refused(tmp_path, url, given, said):
    with pytest.raises(ValueError, match=said):
        made(tmp_path, url, ByPrompt(MIXED), **given)


def test_datasets_without_random_access_are_refused(tmp_path, url):
    with pytest.raises(ValueError, match="max_refill_rounds needs an indexable training dataset"):
        made(tmp_path, url, ByPrompt(MIXED), data=dataset(PLAIN).to_iterable_dataset())
