"""The structural checks that generated rubrics pass: counts, weights, kinds, repetition, leaks, self-containment.

They read texts and numbers only; whether a criterion is any good is asked of a judge (`validity`).
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from judge_server.generation.writer import RubricDiscarded
from trainer_client.wire import Criterion

MAX_QUOTED_WORDS = 20
"""Words in a row that a criterion may not share with a reference answer; a shorter answer not as a whole."""

MIN_REFERENCE_WORDS = 6
"""A reference answer of fewer words is a result, which criteria must be able to name."""

_EDGE_PUNCTUATION = ".,;:!?\"'`“”‘’()[]*_"
_SOURCE_MENTION = re.compile(
    r"\b(?:the|this|that|given|provided|above|following|source)\s+"
    r"(?:(?:given|provided|above|following|source|original)\s+)?"
    r"(?:document|passage|text|excerpt|article|abstract)(?:'s|’s)?\b(?![\s-]+(?:editors?|files?|fields?|modes?|box))",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class RubricRules:
    """What the rubrics of a kind must keep to.

    Attributes:
        fewest: the least number of criteria.
        most: the greatest number of criteria.
        kinds: the kinds a criterion may have.
        lowest: the least weight.
        highest: the greatest weight; 0 is never one where `integer_weights` is set.
        integer_weights: weights are whole numbers.
        positive: some weight must be above 0.
        least_total: the least sum of the weights.
    """

    fewest: int
    most: int
    kinds: Collection[str]
    lowest: float
    highest: float
    integer_weights: bool = True
    positive: bool = True
    least_total: float = 0.0


@dataclass(frozen=True, slots=True)
class Draft:
    """A criterion as a model wrote it: nothing of it is believed."""

    description: str
    kind: str = "point"
    weight: float = 1.0


def check_drafts(drafts: Sequence[Draft], rules: RubricRules, *, references: Iterable[str] = ()) -> None:
    """Check all that a rubric of a kind must keep to.

    Raises:
        Discarded: `too_few`, `too_many`, `unknown_kind`, `empty_criterion`, `bad_weight`, `duplicate_criteria` or
            `leaks_reference`, looked for in this order.
    """
    _check_count(len(drafts), rules)
    for number, draft in enumerate(drafts, 1):
        if draft.kind not in rules.kinds:
            known = ", ".join(rules.kinds)
            raise RubricDiscarded("unknown_kind", f"criterion {number} is of kind {draft.kind!r}; there are {known}")
        if len(words(draft.description)) < 2:
            raise RubricDiscarded(
                "empty_criterion", f"criterion {number} says {draft.description!r}, which checks nothing"
            )
        _check_weight(number, draft.weight, rules)
    if rules.positive and not any(draft.weight > 0 for draft in drafts):
        raise RubricDiscarded("bad_weight", "no criterion has a weight above 0")
    total = sum(draft.weight for draft in drafts)
    if rules.least_total > 0 and total < rules.least_total:
        raise RubricDiscarded(
            "bad_weight", f"the weights add up to {total:g}, and at least {rules.least_total:g} are needed"
        )
    check_distinct([draft.description for draft in drafts])
    check_leaks([draft.description for draft in drafts], references)


def check_distinct(descriptions: Sequence[str]) -> None:
    """Raise `duplicate_criteria` where two say the same but for letter case, white space and punctuation at words."""
    first: dict[str, int] = {}
    for number, description in enumerate(descriptions, 1):
        earlier = first.setdefault(" ".join(words(description)), number)
        if earlier != number:
            raise RubricDiscarded("duplicate_criteria", f"criteria {earlier} and {number} are alike: {description!r}")


def check_leaks(descriptions: Sequence[str], references: Iterable[str]) -> None:
    """Raise `leaks_reference` where a criterion repeats a reference answer word for word."""
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
    """Raise `not_self_contained` where a text names a document that its reader does not have."""
    if named := _SOURCE_MENTION.search(text):
        raise RubricDiscarded("not_self_contained", f"{what} speaks of {named[0]!r}, which its reader does not have")


def contains_result(text: str, result: str) -> bool:
    """Whether a text has a result in it, and not only as a part of another: 7 is not in 57, nor in 7.5."""
    alone = rf"(?<![\w.,-]){re.escape(result)}(?!\w|[.,]\d)"
    return re.search(alone, text, re.IGNORECASE) is not None


def words(text: str) -> list[str]:
    """The words of a text in lower case, without the punctuation around them; signs such as + stay."""
    return [word for part in text.casefold().split() if (word := part.strip(_EDGE_PUNCTUATION))]


def criteria_from_drafts(drafts: Iterable[Draft]) -> tuple[Criterion, ...]:
    """The criteria of drafts that were checked, called by their kinds: `factual-1`, `process-1`, `factual-2`, …"""
    seen: dict[str, int] = {}
    made = []
    for draft in drafts:
        seen[draft.kind] = seen.get(draft.kind, 0) + 1
        fields = {"kind": draft.kind, "description": draft.description, "weight": draft.weight}
        made.append(Criterion.model_validate({"id": f"{draft.kind}-{seen[draft.kind]}", **fields}))
    return tuple(made)


def _check_count(count: int, rules: RubricRules) -> None:
    if count < rules.fewest:
        raise RubricDiscarded("too_few", f"{count} criteria, and at least {rules.fewest} are needed")
    if count > rules.most:
        raise RubricDiscarded("too_many", f"{count} criteria, and at most {rules.most} are taken")


def _check_weight(number: int, weight: float, rules: RubricRules) -> None:
    within = rules.lowest <= weight <= rules.highest
    if not within or (rules.integer_weights and (weight != int(weight) or weight == 0)):
        raise RubricDiscarded(
            "bad_weight",
            f"criterion {number} weighs {weight:g}, and {'whole numbers ' if rules.integer_weights else ''}from {rules.lowest:g} "
            f"to {rules.highest:g}{' but 0' if rules.integer_weights and rules.lowest < 0 else ''} are taken",
        )
