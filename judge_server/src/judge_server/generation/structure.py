"""Structural checks of generated rubrics: weights, kinds, repetition, leaks, self-containment.

The checks look at texts and numbers only. Whether a criterion is any good is for a judge to decide (`validity`).
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

from judge_server.generation.writer import RubricDiscarded
from trainer_client.wire import Criterion

MAX_QUOTED_WORDS = 20
"""A criterion may not share this many consecutive words with a reference answer, or all words of a shorter answer."""

MIN_REFERENCE_WORDS = 6
"""A reference answer of fewer words is a bare result, which criteria may name."""

_EDGE_PUNCTUATION = ".,;:!?\"'`“”‘’()[]*_"
_SOURCE_MENTION = re.compile(
    r"\b(?:the|this|that|given|provided|above|following|source)\s+"
    r"(?:(?:given|provided|above|following|source|original)\s+)?"
    r"(?:document|passage|text|excerpt|article|abstract)(?:'s|’s)?\b(?![\s-]+(?:editors?|files?|fields?|modes?|box))",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Draft:
    """A criterion as a model wrote it, not yet checked."""

    description: str
    kind: str = "point"
    weight: float = 1.0


def check_drafts(
    drafts: Sequence[Draft],
    *,
    kinds: Collection[str] = ("point",),
    weights: tuple[float, float],
    references: Iterable[str] = (),
    integer_weights: bool = True,
    positive: bool = True,
) -> None:
    """Check drafts for their kinds and weights, for duplicates, and for leaks of the reference answers.

    Args:
        weights: the lowest and the highest weight.
        integer_weights: whether weights must be integers other than 0.
        positive: whether at least one weight must be above 0.

    Raises:
        RubricDiscarded: `unknown_kind`, `empty_criterion`, `bad_weight`, `duplicate_criteria` or `leaks_reference`,
            checked in this order.
    """
    for number, draft in enumerate(drafts, 1):
        if draft.kind not in kinds:
            known = ", ".join(kinds)
            raise RubricDiscarded("unknown_kind", f"criterion {number} is of kind {draft.kind!r}; use one of {known}")
        if len(words(draft.description)) < 2:
            raise RubricDiscarded(
                "empty_criterion", f"criterion {number} says {draft.description!r}, which checks nothing"
            )
        _check_weight(number, draft.weight, weights, integer=integer_weights)
    if positive and not any(draft.weight > 0 for draft in drafts):
        raise RubricDiscarded("bad_weight", "no criterion has a weight above 0")
    check_distinct([draft.description for draft in drafts])
    check_leaks([draft.description for draft in drafts], references)


def check_distinct(descriptions: Sequence[str]) -> None:
    """Discard as `duplicate_criteria` if two differ only in letter case, white space or punctuation around words."""
    first: dict[str, int] = {}
    for number, description in enumerate(descriptions, 1):
        earlier = first.setdefault(" ".join(words(description)), number)
        if earlier != number:
            raise RubricDiscarded("duplicate_criteria", f"criteria {earlier} and {number} are alike: {description!r}")


def check_leaks(descriptions: Sequence[str], references: Iterable[str]) -> None:
    """Discard as `leaks_reference` if a criterion repeats a reference answer word for word."""
    for reference in references:
        reference_words = words(reference)
        if len(reference_words) < MIN_REFERENCE_WORDS:
            continue
        length = min(len(reference_words), MAX_QUOTED_WORDS)
        quotes = {tuple(reference_words[at : at + length]) for at in range(len(reference_words) - length + 1)}
        for number, description in enumerate(descriptions, 1):
            description_words = words(description)
            if any(
                tuple(description_words[at : at + length]) in quotes
                for at in range(len(description_words) - length + 1)
            ):
                raise RubricDiscarded(
                    "leaks_reference", f"criterion {number} repeats {length} words in a row of the reference answer"
                )


def check_self_contained(what: str, text: str) -> None:
    """Discard as `not_self_contained` if a text refers to a document that its reader does not have."""
    if named := _SOURCE_MENTION.search(text):
        raise RubricDiscarded("not_self_contained", f"{what} mentions {named[0]!r}, which its reader does not have")


def contains_result(text: str, result: str) -> bool:
    """Whether a text contains a result by itself, not as a part of another: 7 is neither in 57 nor in 7.5."""
    alone = rf"(?<![\w.,-]){re.escape(result)}(?!\w|[.,]\d)"
    return re.search(alone, text, re.IGNORECASE) is not None


def words(text: str) -> list[str]:
    """Split a text into lower-case words without surrounding punctuation; signs such as + are kept."""
    return [word for part in text.casefold().split() if (word := part.strip(_EDGE_PUNCTUATION))]


def criteria_from_drafts(
    drafts: Iterable[Draft], prefix: Callable[[Draft], str] = attrgetter("kind"), **fields: Any
) -> tuple[Criterion, ...]:
    """Turn checked drafts into criteria with ids by kind or another `prefix`: `factual-1`, `process-1`, `factual-2`, …

    `fields` are further fields of every criterion.
    """
    seen: Counter[str] = Counter()
    criteria = []
    for draft in drafts:
        name = prefix(draft)
        seen[name] += 1
        criteria.append(Criterion.model_validate({"id": f"{name}-{seen[name]}", **asdict(draft), **fields}))
    return tuple(criteria)


def _check_weight(number: int, weight: float, allowed: tuple[float, float], *, integer: bool) -> None:
    lowest, highest = allowed
    if not lowest <= weight <= highest or (integer and (weight != int(weight) or weight == 0)):
        what = "an integer" if integer else "a number"
        nonzero = " other than 0" if integer and lowest < 0 else ""
        raise RubricDiscarded(
            "bad_weight",
            f"criterion {number} has weight {weight:g}; use {what} from {lowest:g} to {highest:g}{nonzero}",
        )
