"""Measures how accurate a run's samples are, counting only those generated from the plain question.

No problem is used twice, so training samples also measure how well the policy does. Samples from longer prompts do not
count, since a deployed policy would not get such prompts.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from examples.learning.arithmetic import ArithmeticOperation, ArithmeticProblem
from examples.learning.rubrics import answer_is_right, step_accuracy

from trainer_client.final_answer import extract_final_answer
from trainer_client.trl.callbacks import GenerationCallback, ScoredGeneration
from trainer_client.wire import ResponseReward


class AccuracyCallback(GenerationCallback):
    """Measures the accuracy of each generation batch.

    It is both a reward function that always returns 0, to receive the responses, and a callback, to evaluate them.

    Attributes:
        steps: for each generation batch, measures of the responses to plain questions: the share with the right answer
            (`answer`), the mean share of right steps (`steps`), the shares with both right (`faithful`) and with any
            answer (`answered`), and the share of problems solved at least once (`solved`). `plain` is the share of
            responses to plain questions, `declared` the mean reward of all under the rubric's own weights, and `asked`
            the share of the judge's verdicts that dropout did not leave out.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._seen: list[tuple[ArithmeticProblem, str]] = []
        self.__name__ = "watch"

    def __call__(self, completions: list[str], problem: list[str], **_: Any) -> list[float]:
        """Record a batch, and return rewards of 0."""
        self._seen = [(read_problem(text), response) for text, response in zip(problem, completions, strict=True)]
        return [0.0] * len(completions)

    def on_scored(self, generation: ScoredGeneration) -> Mapping[str, float]:
        """Measure the recorded batch."""
        off_policy = generation.off_policy or [False] * len(self._seen)
        plain = [pair for pair, other in zip(self._seen, off_policy, strict=True) if not other]
        right = [answer_is_right(*pair) for pair in plain]
        steps = [step_accuracy(*pair) for pair in plain]
        seen = {
            "answer": np.mean(right),
            "steps": np.mean(steps),
            "faithful": np.mean([own and share == 1.0 for own, share in zip(right, steps, strict=True)]),
            "answered": np.mean([extract_final_answer(response) is not None for _, response in plain]),
            "solved": len({problem for (problem, _), own in zip(plain, right, strict=True) if own})
            / len({problem for problem, _ in plain}),
            "plain": len(plain) / len(self._seen),
        }
        rows = [] if generation.reward is None or generation.reward.last is None else generation.reward.last.rows
        rewards = [_declared(row.answer) for row in rows if row.answer is not None]
        seen["declared"] = np.mean([reward for reward in rewards if reward is not None] or [0.0])
        asked = [
            one.status != "left_out"
            for row in rows
            for one in (() if row.answer is None else row.answer.verdicts)
            if one.method == "judge"
        ]
        seen["asked"] = np.mean(asked or [0.0])
        self.steps.append({name: float(value) for name, value in seen.items()})
        return {}


def _declared(answer: ResponseReward) -> float | None:
    return answer.reward if answer.declared_reward is None else answer.declared_reward


def write_problem(problem: ArithmeticProblem) -> str:
    """Serialize a problem for a column of a dataset."""
    return json.dumps([problem.start, problem.operations])


def read_problem(text: str) -> ArithmeticProblem:
    """Parse the output of `write_problem`."""
    start, operations = json.loads(text)
    return ArithmeticProblem(start, tuple([ArithmeticOperation(*operation) for operation in operations]))
