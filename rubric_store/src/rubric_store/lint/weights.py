"""Weights against each other, and answers that a criterion gives away."""

import re
from collections.abc import Iterator, Sequence

from rubric_store.lint.findings import Finding
from trainer_client.wire import Criterion

_MIN_CRITERIA = 3
_VALUE = re.compile(r"-?\d+(?:[./]\d+)*")


def check_weights(criteria: Sequence[Criterion]) -> Iterator[Finding]:
    """Criteria that count for nothing, and one that counts for more than all others together."""
    total = sum(abs(criterion.weight) for criterion in criteria)
    for criterion in criteria:
        if criterion.weight == 0:
            problem = "its weight is 0, so it is judged for nothing"
            yield Finding("weightless", "warning", criterion.id, problem, "give it a weight, or leave it out")
        elif len(criteria) >= _MIN_CRITERIA and abs(criterion.weight) > total / 2:
            rest = total - abs(criterion.weight)
            problem = f"its weight, {criterion.weight:g}, is more than all others together ({rest:g})"
            yield Finding("outweighs", "warning", criterion.id, problem, "weigh it less, or split what it asks for")


def find_leaked_answers(criteria: Sequence[Criterion], answer: str | None = None) -> Iterator[Finding]:
    """Criteria that hold the final answer, and are no `answer` themselves.

    The answer is `answer` where it is given, else what the `answer` criterion expects, or the last number in it.
    """
    known = answer or next(filter(None, map(_expected, criteria)), None)
    if not known:
        return
    answer_pattern = re.compile(rf"(?<![\w.])-?{re.escape(known)}(?![\w]|\.\d)")
    for criterion in criteria:
        if criterion.kind != "answer" and answer_pattern.search(criterion.description):
            problem = f"it gives the final answer away ({known[:40]!r}), which a policy that is shown it would copy"
            advice = "say how to get there; or never show this rubric to the policy"
            yield Finding("gives-answer", "note", criterion.id, problem, advice)


def _expected(criterion: Criterion) -> str | None:
    if criterion.kind != "answer":
        return None
    expected = getattr(criterion.verification, "expected", None)
    if expected is not None:
        return f"{expected:g}" if isinstance(expected, float) else str(expected)
    numbers = _VALUE.findall(criterion.description)
    return numbers[-1] if numbers else None
