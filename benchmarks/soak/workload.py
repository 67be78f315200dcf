"""What is judged in a soak: groups of eight answers, each the same whenever it is asked for by its number."""

import random
from typing import Any

RESPONSES, CRITERIA = 8, 4
VERDICTS = RESPONSES * CRITERIA
REPEATED_EVERY, REPEATED_AFTER = 5, 3
RUBRIC = "soak/answers"
RULES: list[dict[str, Any]] = [
    {"id": f"c{n}", "description": f"The answer does what part {n} of the question asks.", "weight": 2**n}
    for n in range(CRITERIA)
]
"""Weights of which every sum is another one: a reward says which verdicts it was made of."""

AT_A_JUDGE = 6 * CRITERIA
"""Calls that a judge has at its engine at a time: the six responses that it is given at once."""

_WORDS = ("both", "sides", "sum", "divide", "by", "so", "three", "holds", "then", "therefore", "answer", "is", "even")
_BULK = 10_000_000


def subject_of(run: int, request: int) -> int:
    """Which group a run's request is about: now and then one that it asked about shortly before."""
    return run * 1_000_000 + (request - REPEATED_AFTER if request % REPEATED_EVERY == 0 else request)


def bulk_subjects(operation: int, groups: int) -> list[int]:
    """Which groups an operation is about: none that is asked about elsewhere."""
    return [_BULK + operation * 1000 + n for n in range(groups)]


def group_of(subject: int) -> dict[str, Any]:
    """The group of a number."""
    draw = random.Random(subject)
    prompt = f"Question {subject}: " + " ".join(draw.choices(_WORDS, k=60))
    texts = [f"Answer {n} to {subject}: " + " ".join(draw.choices(_WORDS, k=80)) for n in range(RESPONSES)]
    return {"id": f"s{subject}", "prompt": prompt, "responses": texts}
