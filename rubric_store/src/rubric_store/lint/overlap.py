"""Criteria that ask the same: how alike two texts are, by the content words they share.

The measure is Jaccard's, the stems that both have over the stems that either has, with one change: a word in place of
another counts twice more against it, since "the first environment" and "the second environment" are two things, while
a text with a few words more mostly asks the same. Words that say nothing of what a text is about are left out. It is 1
for the same words in any order, and knows no synonyms. Two texts whose numbers differ are never reported.
"""

import re
from collections.abc import Sequence
from itertools import combinations

from rubric_store.lint.findings import Finding
from rubric_store.lint.words import strip_remarks, word_set, words
from trainer_client.wire import Criterion

SIMILARITY = 0.75
"""From here on two criteria are reported, unless told otherwise."""

_ENDING = re.compile(r"(?<=\w{3})(?:ingly|edly|ations?|ments?|ings?|ies|ied|ely|ers?|es|ed|ly|s|e)$")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def similarity(one: str, other: str) -> float:
    """How alike two texts are, from 0 to 1."""
    return _stem_similarity(_stems(one), _stems(other))


def find_overlaps(criteria: Sequence[Criterion], threshold: float = SIMILARITY) -> list[Finding]:
    """Pairs of criteria that are the same, or at least as alike as `least`; each finding is the later one's."""
    found = []
    stems = [_stems(strip_remarks(criterion.description)) for criterion in criteria]
    normalised = [" ".join(words(strip_remarks(criterion.description))) for criterion in criteria]
    numbers = [set(_NUMBER.findall(criterion.description)) for criterion in criteria]
    for (i, one), (j, other) in combinations(enumerate(criteria), 2):
        if normalised[i] and normalised[i] == normalised[j]:
            problem = f"it says what criterion {one.id} says, so this counts twice"
            found.append(Finding("duplicate", "error", other.id, problem, "leave one out"))
        elif numbers[i] == numbers[j] and _stem_similarity(stems[i], stems[j]) >= threshold:
            share = f"its words are nearly those of criterion {one.id} (similarity {_stem_similarity(stems[i], stems[j]):.2f})"
            opposed = (one.weight < 0) != (other.weight < 0)
            problem = f"{share}, with the opposite sign: one thing counts twice" if opposed else share
            found.append(
                Finding(
                    "overlap", "warning", other.id, problem, "if they ask the same, keep one; or say how they differ"
                )
            )
    return found


def _stems(text: str) -> frozenset[str]:
    return frozenset(_ENDING.sub("", word) for word in words(text) if word not in word_set("common"))


def _stem_similarity(one: frozenset[str], other: frozenset[str]) -> float:
    replaced = min(len(one - other), len(other - one))
    return len(one & other) / (len(one | other) + 2 * replaced) if one | other else 0.0
