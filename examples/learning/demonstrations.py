"""Demonstrations for supervised training: plain questions, questions with rubric points, and answers to improve.

The points of a rubric state the right steps, so a policy that can read them copies those steps.
"""

import re
from typing import Any, NamedTuple

import numpy as np
from examples.learning.arithmetic import ArithmeticProblem
from examples.learning.rubrics import answer_is_right, plain_rubric, right_steps
from examples.learning.solutions import solution

from trainer_client.refine import refinement_prompt
from trainer_client.scaffold import scaffold_text, scaffolded_prompt


class Demonstration(NamedTuple):
    """A prompt and its answer."""

    prompt: str
    answer: str


def plain_demonstration(
    problem: ArithmeticProblem, rng: np.random.Generator, mistake_rate: float, unanswered: float = 0.0
) -> Demonstration:
    """Create a plain question with a solution that may contain mistakes."""
    return Demonstration(problem.prompt, solution(problem, rng, mistake_rate, unanswered=unanswered))


def scaffolded_demonstration(
    problem: ArithmeticProblem, rng: np.random.Generator, mistake_rate: float, unanswered: float = 0.0
) -> Demonstration:
    """Create a question with some points of its rubric; the solution copies the steps that they state."""
    criteria = plain_rubric(problem)["criteria"]
    count = int(rng.integers(1, len(criteria) + 1))
    shown = sorted(rng.choice(len(criteria), count, replace=False).tolist())
    given_steps = {index + 1 for index in shown if index < len(problem.operations)}
    text = solution(problem, rng, mistake_rate, unanswered=unanswered, given_steps=given_steps)
    return Demonstration(str(scaffolded_prompt(problem.prompt, [criteria[index] for index in shown])), text)


def refined_demonstration(
    problem: ArithmeticProblem, rng: np.random.Generator, mistake_rate: float, unanswered: float = 0.0
) -> Demonstration:
    """Create a question with a flawed answer and its failed criteria; the solution copies all right steps."""
    previous, failed = "", list[Any]()
    while not failed:
        previous = solution(problem, rng, mistake_rate, unanswered=unanswered)
        failed = failed_criteria(problem, previous)
    everything = set(range(1, len(problem.operations) + 1))
    better = solution(problem, rng, mistake_rate, unanswered=unanswered, given_steps=everything)
    return Demonstration(str(refinement_prompt(problem.prompt, previous, failed)), better)


DEMONSTRATION_KINDS = (plain_demonstration, scaffolded_demonstration, refined_demonstration)


def failed_criteria(problem: ArithmeticProblem, response: str) -> list[dict[str, Any]]:
    """Return the criteria of the plain rubric that a response fails, in order."""
    met = [*right_steps(problem, response), answer_is_right(problem, response)]
    return [criterion for criterion, own in zip(plain_rubric(problem)["criteria"], met, strict=True) if not own]


def prompt_sentences() -> list[str]:
    """Return the fixed text of prompts around a question, a previous answer and the points."""
    own = ["QUESTION", "PREVIOUS", "- POINT"]
    point = {"description": "POINT"}
    texts = [scaffold_text([point]), str(refinement_prompt(own[0], own[1], [point]))]
    return [part for text in texts for part in re.split("|".join(own), text) if part]
