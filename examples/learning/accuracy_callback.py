"""Watches a run: how right its samples are, those written after the plain question alone.

No problem comes twice, so that what is sampled for training also tells how well the policy does. What it wrote after a
longer prompt does not count, since it would not have that prompt when it is used.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from examples.learning.arithmetic import ArithmeticOperation, ArithmeticProblem
from examples.learning.rubrics import answer_is_right, step_accuracy

from trainer_client.final_answer import extract_final_answer
from trainer_client.trl.callbacks import GenerationCallback, ScoredGeneration


class AccuracyCallback(GenerationCallback):
    """A reward function that rewards nothing, and a callback: it reads responses as the one, and counts as the other.

    Attributes:
        steps: for each generation batch, the share of its responses with the right answer (`answer`), the mean share
            of right steps (`steps`), the shares of those right in both (`faithful`) and of those with any answer
            (`answered`), and the share of problems that are solved at least once (`solved`): all of the responses to
            plain questions, whose share of all is `plain`.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._seen: list[tuple[ArithmeticProblem, str]] = []
        self.__name__ = "watch"

    def __call__(self, completions: list[str], problem: list[str], **_: Any) -> list[float]:
        """Read a batch."""
        self._seen = [(read_problem(text), response) for text, response in zip(problem, completions, strict=True)]
        return [0.0] * len(completions)

    def on_scored(self, generation: ScoredGeneration) -> Mapping[str, float]:
        """Count what was read."""
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
        self.steps.append({name: float(value) for name, value in seen.items()})
        return {}


def write_problem(problem: ArithmeticProblem) -> str:
    """Write a problem down for a column of a data set."""
    return json.dumps([problem.start, problem.operations])


def read_problem(text: str) -> ArithmeticProblem:
    """Read what `write_problem` wrote."""
    start, operations = json.loads(text)
    return ArithmeticProblem(start, tuple([ArithmeticOperation(*operation) for operation in operations]))
