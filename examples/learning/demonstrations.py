"""What the policy is taught by: questions as they stand, with points to keep in mind, and with an answer to better.

The points of a rubric say what steps are, so that whoever can read them copies those steps. Knows no model.
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
    """A prompt, and what to answer."""

    prompt: str
    answer: str


def plain_demonstration(
    problem: ArithmeticProblem, rng: np.random.Generator, mistake_rate: float, unanswered: float = 0.0
) -> Demonstration:
    """A question as it stands, solved as people do."""
    return Demonstration(problem.prompt, solution(problem, rng, mistake_rate, unanswered=unanswered))


def scaffolded_demonstration(
    problem: ArithmeticProblem, rng: np.random.Generator, mistake_rate: float, unanswered: float = 0.0
) -> Demonstration:
    """A question with some of its rubric's points; the steps that they say are copied."""
    criteria = plain_rubric(problem)["criteria"]
    count = int(rng.integers(1, len(criteria) + 1))
    shown = sorted(rng.choice(len(criteria), count, replace=False).tolist())
    given_steps = {index + 1 for index in shown if index < len(problem.operations)}
    text = solution(problem, rng, mistake_rate, unanswered=unanswered, given_steps=given_steps)
    return Demonstration(str(scaffolded_prompt(problem.prompt, [criteria[index] for index in shown])), text)


def refined_demonstration(
    problem: ArithmeticProblem, rng: np.random.Generator, mistake_rate: float, unanswered: float = 0.0
) -> Demonstration:
    """A question with an answer and what it lacks; the steps that are named, and those that were right, are copied."""
    previous, failed = "", list[Any]()
    while not failed:
        previous = solution(problem, rng, mistake_rate, unanswered=unanswered)
        failed = failed_criteria(problem, previous)
    everything = set(range(1, len(problem.operations) + 1))
    better = solution(problem, rng, mistake_rate, unanswered=unanswered, given_steps=everything)
    return Demonstration(str(refinement_prompt(problem.prompt, previous, failed)), better)


DEMONSTRATION_KINDS = (plain_demonstration, scaffolded_demonstration, refined_demonstration)


def failed_criteria(problem: ArithmeticProblem, response: str) -> list[dict[str, Any]]:
    """The criteria of the plain rubric that a response fails, in order."""
    met = [*right_steps(problem, response), answer_is_right(problem, response)]
    return [criterion for criterion, own in zip(plain_rubric(problem)["criteria"], met, strict=True) if not own]


def prompt_sentences() -> list[str]:
    """What prompts say around a question, a previous answer and the points: the same in all of them."""
    own = ["QUESTION", "PREVIOUS", "- POINT"]
    point = {"description": "POINT"}
    texts = [scaffold_text([point]), str(refinement_prompt(own[0], own[1], [point]))]
    return [part for text in texts for part in re.split("|".join(own), text) if part]
