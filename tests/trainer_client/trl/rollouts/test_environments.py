"""TRL's environments: with methods that inspect single prompts or regenerate some responses, and with own rewards."""

import json

import pytest
from trl.chat_template_utils import qwen3_chat_template

from tests.fixtures.ports import unused_port
from tests.trainer_client.trl.training import PLAIN, RIGHT, SLIP, WRONG, dataset, policy, settings, tokenizer
from trainer_client.adapters import RubricScorer
from trainer_client.trl import RubricGRPOTrainer, RubricReward

pytestmark = pytest.mark.trl

FACTUAL = [{**criterion, "kind": "factual"} for criterion in PLAIN]


class Counter:
    """An environment that counts its resets, and has one tool."""

    def __init__(self):
        self.begun = 0

    def reset(self, **_):
        self.begun += 1

    def look(self) -> int:
        """Look.

        Returns:
            How often it began.
        """
        return self.begun


class Exam(Counter):
    """An environment that owns its reward, None until its service has judged an answer."""

    def __init__(self, url):
        super().__init__()
        self.url, self.reward = url, None

    def reset(self, **_):
        super().reset()
        self.reward = None

    def answer(self, text: str) -> str:
        """Answer.

        Args:
            text: The answer.

        Returns:
            A confirmation.
        """
        service = f"http://127.0.0.1:{unused_port()}" if text == WRONG else self.url
        scorer = RubricScorer(service, PLAIN, deadline_s=20 if service == self.url else 0.3, grace_s=0.0)
        self.reward = scorer.require(scorer.score_blocking("(3+4)*2=?", text, {"ground_truth": "14"}))
        return "Noted."

    def get_reward(self):
        return self.reward


class RecordingRollout:
    """A rollout function for messages that records the number of prompts and environments of each call."""

    def __init__(self, *texts, later=None):
        self.texts, self.later, self.asked = texts, later or texts, []

    def __call__(self, prompts, trainer):
        texts = self.later if self.asked else self.texts
        self.asked.append((len(prompts), [one.begun for one in trainer.environments]))
        words = trainer.processing_class
        ids = [[*words(texts[row % len(texts)])["input_ids"], words.eos_token_id] for row in range(len(prompts))]
        return {
            "prompt_ids": [words(prompt[-1]["content"])["input_ids"] for prompt in prompts],
            "completion_ids": ids,
            "logprobs": [[0.0] * len(row) for row in ids],
        }


def living(tmp_path, url, rollout, factory=Counter, reward=None, **given):
    words = tokenizer()
    words.chat_template = qwen3_chat_template
    data = dataset(FACTUAL).map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]})
    if isinstance(factory, dict):
        data = data.add_column("environment", ["one", "other"])
    model = policy(tmp_path / "policy")
    model.config.max_position_embeddings = 4096
    return RubricGRPOTrainer(
        model, [reward or RubricReward(url)], settings(tmp_path, **given), train_dataset=data, processing_class=words,
        rollout_func=rollout, environment_factory=factory,
    )  # fmt: skip


@pytest.mark.parametrize("factory", [Counter, {"one": Counter, "other": Counter}])
def test_refined_responses_reset_the_environments_of_their_rows(tmp_path, url, factory):
    rollout = RecordingRollout(WRONG, SLIP, WRONG, WRONG, later=(RIGHT,))
    made = living(tmp_path, url, rollout, factory, method="rgr", entropy_coef=0.0)
    made.train()
    assert rollout.asked == [(8, [1] * 8), (2, [2, 2])]
    assert [one.begun for one in made.environments] == [1, 1, 1, 2] * 2
    assert made.state.log_history[0]["rgr/refined"] == 0.25


@pytest.mark.parametrize("factory", [Counter, {"one": Counter, "other": Counter}])
def test_scaffolded_prompts_keep_the_environments_of_their_rows(tmp_path, url, factory):
    rollout = RecordingRollout(RIGHT, WRONG)
    options = {"pattern": "full", "decay": "constant"}
    made = living(tmp_path, url, rollout, factory, method="ruscarl", method_options=options)
    made.train()
    assert rollout.asked == [(8, [1] * 8)]
    assert made.state.log_history[0]["scaffold/prompts"] == 1.0


def calling(*texts):
    """A rollout function whose responses call the tool `answer`; TRL runs it and lets the policy continue."""
    calls = [json.dumps({"name": "answer", "arguments": {"text": text}}) for text in texts]
    rollout = RecordingRollout(*(f"<tool_call>\n{call}\n</tool_call>" for call in calls))
    return lambda prompts, trainer: rollout(prompts, trainer) | {"logprobs": None}


def test_a_tool_whose_judging_failed_leaves_its_environment_without_a_reward(tmp_path, url):
    options = {"max_completion_length": 1000, "required_rewards": ["Exam"]}
    made = living(tmp_path, url, calling(RIGHT, WRONG), lambda: Exam(url), **options)
    made.train()
    logged = made.state.log_history[0]
    assert (logged["tools/call_frequency"], logged["tools/failure_frequency"]) == (1.0, 0.5)
    assert (logged["rewards/Exam/mean"], logged["rewards/Exam/missing"]) == (1.0, 0.5)
    assert logged["rubric/left_out"] == 0.5


def test_rewards_that_environments_and_rollouts_hold_are_added_to_the_rubrics(tmp_path, url):
    def scored(prompts, trainer):
        return RecordingRollout(RIGHT)(prompts, trainer) | {"score": [0.5] * len(prompts)}

    def owned(environments, score, **_):
        return [one.begun + value for one, value in zip(environments, score, strict=True)]

    made = living(tmp_path, url, scored, reward=RubricReward(url, extra_rewards=[owned], weights=[1.0, 0.5]))
    made.train()
    assert made.state.log_history[0]["rewards/RubricReward/mean"] == 1.75
