"""Detect looping in a response from its text (SRaR, section 4.3.2).

The four signs and two limits are the paper's. The phrases (`SELF_CORRECTION_PHRASES`) and the comparison of paragraphs
(the parameters of `loops`) are ours.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypedDict

from trainer_client.rewards import Score, read_scores
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
"""Phrases with which a writer corrects or doubts the text before (ours: the paper's list is not published)."""


@dataclass(frozen=True, slots=True)
class LoopSigns:
    """The signs of looping in a response. It is true if the response has any of them.

    Attributes:
        self_corrections: the number of self-correction phrases.
        too_many_corrections: whether that number is above the limit.
        repeated_first_step: whether `### Step 1` occurs more than once.
        repeated_headings: whether the heading of any step, the first included, occurs more than once.
        duplicate_share: the share of paragraphs that repeat an earlier one, in [0, 1].
        too_many_duplicates: whether that share is above the limit.
    """

    self_corrections: int
    too_many_corrections: bool
    repeated_first_step: bool
    repeated_headings: bool
    duplicate_share: float
    too_many_duplicates: bool

    @property
    def looping(self) -> bool:
        """Whether the response has any sign of looping."""
        return (
            self.too_many_corrections or self.repeated_first_step or self.repeated_headings or self.too_many_duplicates
        )

    def __bool__(self) -> bool:
        return self.looping


class LoopStatistics(TypedDict):
    """Statistics of looping over many responses; a mean without data is None."""

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
    """Find the signs of looping in a response.

    Phrases match whole words, ignoring case and the kind of whitespace between words; if two overlap, the longer one
    counts. Headings are those of `steps.split_steps`, and equal if their numbers are. Paragraphs are separated by blank
    lines, and equal if they differ only in case and whitespace.

    Args:
        text: the response.
        phrases: the self-correction phrases.
        max_corrections: more phrases than this are a sign of looping (paper: 20).
        max_duplicate_share: a larger share of repeated paragraphs is a sign of looping (paper: 0.1).
        min_paragraph_words: paragraphs of fewer words are ignored, since a sound text may repeat "Therefore," or a
            short formula; words are separated by whitespace (ours: 5).
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
    """Summarise the signs of looping in N responses (SRaR, table 3).

    Args:
        found: the result of `loops` for each response.
        correct: whether each answer is right, 1 or 0; None if unknown, which leaves it out of the accuracies.

    Raises:
        ValueError: `correct` does not have one entry for each response, or one is outside [0, 1].
    """
    known = [(signs, score) for signs, score in zip(found, read_scores(correct, len(found)), strict=True)]
    return LoopStatistics(
        loop_rate=_mean([float(signs.looping) for signs in found]),
        mean_self_corrections=_mean([float(signs.self_corrections) for signs in found]),
        accuracy_looping=_mean([score for signs, score in known if score is not None and signs.looping]),
        accuracy_other=_mean([score for signs, score in known if score is not None and not signs.looping]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


@lru_cache(maxsize=8)
def _pattern(phrases: tuple[str, ...]) -> re.Pattern[str]:
    """Compile phrases to a pattern for casefolded text, the longest first.

    Each alternative begins with a letter and checks the text before it only then, so that the search skips most of a
    text quickly.
    """
    by_letter: dict[str, list[str]] = {}
    spelled = {" ".join(phrase.replace("’", "'").casefold().split()) for phrase in phrases} - {""}
    for phrase in sorted(spelled, key=lambda phrase: (-len(phrase), phrase)):
        by_letter.setdefault(phrase[0], []).append(r"\s+".join(map(re.escape, phrase[1:].split(" "))))
    alternatives = (rf"{re.escape(letter)}(?<!\w.)(?:{'|'.join(ends)})(?!\w)" for letter, ends in by_letter.items())
    return re.compile("|".join(alternatives) or "(?!)")
