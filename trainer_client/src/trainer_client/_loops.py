"""Whether a response goes round in circles, by what its text looks like (SRaR, section 4.3.2).

The paper names four signs and two limits; which phrases count, and when two paragraphs are the same, is ours and
stands in `SELF_CORRECTION_PHRASES` and the parameters of `loops`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypedDict

from trainer_client._criteria import Score, read_scores
from trainer_client.steps import STEP_HEADER

SELF_CORRECTION_PHRASES = (
    "actually",
    "but wait",
    "hmm",
    "hold on",
    "i made a mistake",
    "i made an error",
    "i misread",
    "let me check again",
    "let me correct",
    "let me double check",
    "let me double-check",
    "let me go back",
    "let me re-check",
    "let me re-evaluate",
    "let me re-examine",
    "let me recalculate",
    "let me recheck",
    "let me reconsider",
    "let me redo",
    "let me rethink",
    "let me start over",
    "let me try again",
    "let's reconsider",
    "let's start over",
    "let's try again",
    "on second thought",
    "scratch that",
    "that is not right",
    "that's not right",
    "that can't be right",
    "that is wrong",
    "that's wrong",
    "wait",
)
"""Phrases by which a writer takes back or doubts what was just said (ours: the paper's list is not published)."""


@dataclass(frozen=True, slots=True)
class LoopSigns:
    """The signs of looping in a response; true if any of them shows.

    Attributes:
        self_corrections: how many self-correction phrases it has.
        too_many_corrections: whether they are above the limit.
        repeated_first_step: whether `### Step 1` stands in it more than once.
        repeated_headings: whether the heading of any step, the first included, stands in it more than once.
        duplicate_share: the share of its paragraphs that repeat an earlier one, in [0, 1].
        too_many_duplicates: whether that is above the limit.
    """

    self_corrections: int
    too_many_corrections: bool
    repeated_first_step: bool
    repeated_headings: bool
    duplicate_share: float
    too_many_duplicates: bool

    @property
    def looping(self) -> bool:
        """Whether any sign shows."""
        return (
            self.too_many_corrections or self.repeated_first_step or self.repeated_headings or self.too_many_duplicates
        )

    def __bool__(self) -> bool:
        return self.looping


class LoopStatistics(TypedDict):
    """Of many responses; a mean is None where there is nothing to take it of."""

    loop_rate: float | None
    mean_self_corrections: float | None
    accuracy_looping: float | None
    accuracy_other: float | None


def loops(
    text: str,
    *,
    phrases: Sequence[str] = SELF_CORRECTION_PHRASES,
    max_corrections: int = 20,
    max_duplicate_share: float = 0.1,
    min_paragraph_words: int = 5,
) -> LoopSigns:
    """Look for the signs of looping in a response.

    Phrases are found as whole words, without regard to case or to how the space between words is written; where two
    overlap, the longer counts. Headings are those of `steps.split_steps`, and equal if their numbers are. Paragraphs
    are parted by blank lines; two are equal if they differ only in case and space.

    Args:
        text: the response.
        phrases: the self-correction phrases.
        max_corrections: more of them are looping, in phrases (paper: 20).
        max_duplicate_share: a larger share of repeated paragraphs is looping (paper: 0.1).
        min_paragraph_words: shorter paragraphs are not looked at, since sound texts repeat "Therefore," and a short
            formula as well; in words parted by space (ours: 5).
    """
    normalised = text.replace("’", "'").casefold()
    corrections = len(_pattern(tuple(phrases)).findall(normalised))
    numbers = [int(header[1]) for header in STEP_HEADER.finditer(text)]
    words = (paragraph.casefold().split() for paragraph in re.split(r"\n[^\S\n]*\n", text))
    paragraphs = [tuple(paragraph) for paragraph in words if len(paragraph) >= max(1, min_paragraph_words)]
    share = (len(paragraphs) - len(set(paragraphs))) / len(paragraphs) if paragraphs else 0.0
    return LoopSigns(
        self_corrections=corrections,
        too_many_corrections=corrections > max_corrections,
        repeated_first_step=numbers.count(1) > 1,
        repeated_headings=len(set(numbers)) < len(numbers),
        duplicate_share=share,
        too_many_duplicates=share > max_duplicate_share,
    )


def loop_statistics(found: Sequence[LoopSigns], correct: Sequence[Score]) -> LoopStatistics:
    """Summarise what `loops` found in N responses (SRaR, table 3).

    Args:
        found: one for each response.
        correct: whether each answer is right, 1 or 0; None where that is not known, which leaves it out of the
            accuracies.

    Raises:
        ValueError: there is not one of `correct` for each response, or one is outside [0, 1].
    """
    known = [(one, score) for one, score in zip(found, read_scores(correct, len(found)), strict=True)]
    return LoopStatistics(
        loop_rate=_mean([float(one.looping) for one in found]),
        mean_self_corrections=_mean([float(one.self_corrections) for one in found]),
        accuracy_looping=_mean([score for one, score in known if score is not None and one.looping]),
        accuracy_other=_mean([score for one, score in known if score is not None and not one.looping]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


@lru_cache(maxsize=8)
def _pattern(phrases: tuple[str, ...]) -> re.Pattern[str]:
    """Compile phrases to be looked for in casefolded text, the longest first.

    An alternative begins with a letter, and asks what stands before it only then: so the search passes over most of a
    text at once.
    """
    by_letter: dict[str, list[str]] = {}
    spelled = {" ".join(phrase.replace("’", "'").casefold().split()) for phrase in phrases} - {""}
    for phrase in sorted(spelled, key=lambda phrase: (-len(phrase), phrase)):
        by_letter.setdefault(phrase[0], []).append(r"\s+".join(map(re.escape, phrase[1:].split(" "))))
    found = (rf"{re.escape(letter)}(?<!\w.)(?:{'|'.join(ends)})(?!\w)" for letter, ends in by_letter.items())
    return re.compile("|".join(found) or "(?!)")
