"""The workload of a soak: groups of eight responses, generated deterministically from their number."""

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
"""Criteria whose weights have distinct sums, so that a reward identifies the verdicts it was computed from."""

AT_A_JUDGE = 6 * CRITERIA
"""Concurrent calls of a judge to its engine: six responses with all their criteria."""

_WORDS = ("both", "sides", "sum", "divide", "by", "so", "three", "holds", "then", "therefore", "answer", "is", "even")
_BULK = 10_000_000


def subject_of(run: int, request: int) -> int:
    """Return the group of a run's request; every fifth request repeats a recent one."""
    return run * 1_000_000 + (request - REPEATED_AFTER if request % REPEATED_EVERY == 0 else request)


def bulk_subjects(operation: int, groups: int) -> list[int]:
    """Return the groups of an operation, which no other operation or run uses."""
    return [_BULK + operation * 1000 + n for n in range(groups)]


def group_of(subject: int) -> dict[str, Any]:
    """Generate the group with this number."""
    draw = random.Random(subject)
    prompt = f"Question {subject}: " + " ".join(draw.choices(_WORDS, k=60))
    texts = [f"Answer {n} to {subject}: " + " ".join(draw.choices(_WORDS, k=80)) for n in range(RESPONSES)]
    return {"id": f"s{subject}", "prompt": prompt, "responses": texts}
