"""TRL's agent loops: the deltas of turns apply to the tokens sampled in them, and to no tool token."""

import json

import pytest
from datasets import Dataset

from tests.trainer_client.test_turns import tokenizer
from tests.trainer_client.trl.training import policy, settings
from trainer_client.trl import RubricGRPOTrainer, RubricReward

pytestmark = pytest.mark.trl

CRITERIA = [
    {
        "id": "looks",
        "kind": "suggest",
        "description": "It looks up the train.",
        "verification": {"method": "contains", "any_of": ["look it up"]},
    },
    {
        "id": "guess",
        "kind": "pitfall",
        "description": "It guesses.",
        "verification": {"method": "contains", "any_of": ["I guess"]},
    },
    {
        "id": "answer",
        "kind": "answer",
        "description": "It is 80.",
        "verification": {"method": "contains", "any_of": ["80 km/h"]},
    },
]
CALL = f"<tool_call>\n{json.dumps({'name': 'timetable', 'arguments': {'train': 'IC 207'}})}\n</tool_call>"
GOOD = ["I look it up.\n" + CALL, "It is 80 km/h."]
BAD = ["Hm.\n" + CALL, "I guess 200 km/h."]
RESULT = "I look it up. I guess 80 km/h"


def timetable(train: str) -> str:
    """Look a train up.

    Args:
        train: its name.

    Returns:
        What the timetable says, which repeats everything that the criteria look for.
    """
    return RESULT


class Timetable:
    """An environment with the timetable as its tool."""

    def reset(self, **_):
        return None

    def timetable(self, train: str) -> str:
        """Look a train up.

        Args:
            train: its name.

        Returns:
            What the timetable says.
        """
        return RESULT


def data():
    prompt = [{"role": "user", "content": "How fast is IC 207?"}]
    return Dataset.from_dict({"prompt": [prompt], "rubric": [{"criteria": CRITERIA}]})


class Scripted(RubricGRPOTrainer):
    """A trainer whose policy returns scripted responses, by turn and in batch order."""

    def _generate_single_turn(self, prompt_ids, *rest, **named):
        words, self.turn = self.processing_class, getattr(self, "turn", -1) + 1
        said = [(GOOD if row % 2 == 0 else BAD)[self.turn] for row in range(len(prompt_ids))]
        ids = [[*words(text, add_special_tokens=False)["input_ids"], words.eos_token_id] for text in said]
        return ids, [[0.0] * len(row) for row in ids]


def rolled_out(prompts, trainer):
    """A rollout function that calls the timetable itself and marks its own tokens."""
    words = trainer.processing_class
    ids, masks, messages = [], [], []
    for row in range(len(prompts)):
        turns = GOOD if row % 2 == 0 else BAD
        first, result, last = [
            words(text, add_special_tokens=False)["input_ids"] for text in (turns[0], RESULT, turns[1])
        ]
        ids.append([*first, *result, *last, words.eos_token_id])
        masks.append([1] * len(first) + [0] * len(result) + [1] * (len(last) + 1))
        messages.append(
            [
                {"role": "assistant", "content": turns[0].split("<")[0].strip()},
                {"role": "tool", "name": "timetable", "content": RESULT},
                {"role": "assistant", "content": turns[1]},
            ]
        )
    return {
        "prompt_ids": [words(prompt[-1]["content"])["input_ids"] for prompt in prompts],
        "completion_ids": ids,
        "logprobs": [[0.0] * len(row) for row in ids],
        "env_mask": masks,
        "response_messages": messages,
    }


@pytest.mark.parametrize("loop", ["tools", "environment", "rollout"])
def test_deltas_of_turns_apply_only_to_the_tokens_sampled_in_them(tmp_path, url, loop):
    words = tokenizer("qwen3")
    options = {
        "tools": {"tools": [timetable]},
        "environment": {"environment_factory": Timetable},
        "rollout": {"rollout_func": rolled_out},
    }[loop]
    model = policy(tmp_path / "policy", words=words)
    model.config.max_position_embeddings = 8192
    trainer = Scripted(
        model,
        [RubricReward(url, steps="turns")],
        settings(
            tmp_path,
            method="srar",
            per_device_train_batch_size=4,
            max_completion_length=1024,
            method_options={"normalise": False},
        ),
        train_dataset=data(),
        processing_class=words,
        **options,
    )
    trainer.train()
    masks = trainer._sampled.generated[2]
    for row, rollout in enumerate(trainer._local_rollouts):
        good = row % 2 == 0
        assert rollout.deltas == ({1: 0.8, -1: 0.0} if good else {2: -1.0, -1: 0.0})
        assert trainer._rewards[row] == pytest.approx(1.0 if good else 0.1)
        ids = trainer._sampled.generated[1][row]
        (first, second) = (words.decode(ids[slice(*rollout.spans[turn])]) for turn in (1, 2))
        said = GOOD if good else BAD
        assert first.removesuffix("<|im_end|>") == said[0]
        assert second.removesuffix("<|im_end|>") == said[1]
        assert all(all(masks[row][slice(*span)]) for span in rollout.spans.values())
        assert sum(last - first for first, last in rollout.spans.values()) == sum(masks[row])
