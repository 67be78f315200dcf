"""Measurements of judges and trained policies, computed from numbers and texts.

Agreement of two judges, correlation of satisfaction with correctness, pass@k and related estimates, faithful reasoning,
looping, diversity and novelty. None marks a missing input; a measure without data is None, never 0.

ROUGE-L and Self-BLEU compare words: runs of letters and digits of any script, ignoring case, without stemming. For
languages without spaces between words, or to compare tokens, pass lists instead of texts.

Looping (SRaR, section 4.3.2) shows in four signs, which are the paper's, as are two limits. The phrases
(`SELF_CORRECTION_PHRASES`) and the comparison of paragraphs (the parameters of `loops`) are ours.
"""

import math
import operator
import re
import statistics
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, SupportsIndex, TypedDict, TypeVar

from trainer_client.rewards import Score, as_number, read_scores
from trainer_client.steps import STEP_HEADER

__all__ = [
    "SELF_CORRECTION_PHRASES",
    "Faithfulness",
    "LoopSigns",
    "LoopStatistics",
    "Novelty",
    "agreement_rate",
    "average_at_k",
    "best_of_n",
    "cohen_kappa",
    "faithfulness",
    "loop_statistics",
    "loops",
    "novelty",
    "pass_at_k",
    "point_biserial",
    "self_bleu",
    "self_internalization_gap",
    "semantic_distance",
    "step_agreement",
]

Words = str | Sequence[Hashable]
"""A text, or its words or tokens as a list."""

_WORD = re.compile(r"\w+")


def rouge_l_f1(candidate: Words, reference: Words) -> float:
    """Compute ROUGE-L's F1, 2 P R / (P + R), P and R being the share of the longest common subsequence.

    DRO's lexical baseline (its section 5.1). F1 is 2 L / (m + n), in [0, 1]; 0 where a text has no words.

    Args:
        candidate: the response's final answer, m words.
        reference: the reference answer, n words.
    """
    words, reference_words = _words(candidate), _words(reference)
    if not words or not reference_words:
        return 0.0
    return 2.0 * _common_subsequence(words, reference_words) / (len(words) + len(reference_words))


def self_bleu(texts: Sequence[Words], *, max_n: int = 4) -> float:
    """Compute the mean BLEU of each text against all others; 1 minus it is RuscaRL's diversity (appendix D.4).

    BLEU follows Papineni et al.: the geometric mean of the clipped precisions of 1- to `max_n`-grams, times the brevity
    penalty relative to the reference of the closest length (the shorter of two). An order without a match counts as 0.1
    matches, and an order longer than the text is left out (ours: the paper says neither). In [0, 1].

    Args:
        texts: N responses to one prompt, at least 2. One without words scores 0.
        max_n: the longest n-gram, at least 1.

    Raises:
        ValueError: fewer than 2 texts, or `max_n` below 1.
    """
    if len(texts) < 2:
        raise ValueError(f"{len(texts)} texts; Self-BLEU needs at least 2")
    if max_n < 1:
        raise ValueError(f"max_n is {max_n}; use at least 1")
    lists = [_words(text) for text in texts]
    logs: list[list[float]] = [[] for _ in lists]
    for n in range(1, max_n + 1):
        counts = [Counter(zip(*(words[i:] for i in range(n)), strict=False)) for words in lists]
        highest = _two_highest(counts)
        for own, log in zip(counts, logs, strict=True):
            total = own.total()
            if total:
                matches = sum(min(count, _highest_elsewhere(count, *highest[gram])) for gram, count in own.items())
                log.append(math.log((matches or 0.1) / total))
    scores = []
    for index, (words, log) in enumerate(zip(lists, logs, strict=True)):
        if words:
            others = [len(other) for place, other in enumerate(lists) if place != index]
            closest = min(others, key=lambda length: (abs(length - len(words)), length))
            scores.append(math.exp(min(0.0, 1 - closest / len(words)) + math.fsum(log) / len(log)))
    return math.fsum(scores) / len(texts)


def _words(text: Words) -> list[Hashable]:
    return list(_WORD.findall(text.casefold())) if isinstance(text, str) else list(text)


def _common_subsequence(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """The length of the longest common subsequence, with each row of the table as one integer (Hyyrö 2004)."""
    positions: dict[Hashable, int] = {}
    for index, word in enumerate(a):
        positions[word] = positions.get(word, 0) | 1 << index
    full = (1 << len(a)) - 1
    row = full
    for word in b:
        matches = row & positions.get(word, 0)
        row = (row + matches | row - matches) & full
    return len(a) - row.bit_count()


def _two_highest(counts: Sequence[Counter[tuple[Hashable, ...]]]) -> dict[tuple[Hashable, ...], tuple[int, int]]:
    """The highest count of each n-gram in any one text, and the second highest."""
    highest: dict[tuple[Hashable, ...], tuple[int, int]] = {}
    for own in counts:
        for gram, count in own.items():
            first, second = highest.get(gram, (0, 0))
            highest[gram] = (max(first, count), max(second, min(first, count)))
    return highest


def _highest_elsewhere(own: int, first: int, second: int) -> int:
    """The highest count in the other texts: the second highest if this text has the highest."""
    return second if own == first else first


def pass_at_k(n: SupportsIndex, c: SupportsIndex, k: SupportsIndex) -> float:
    """Estimate the probability that at least one of k samples is right, 1 - C(n-c, k) / C(n, k).

    Unbiased (Chen et al. 2021, eq. 1). Computed as a sum of min(k, c) logarithms, so that nothing overflows or cancels.

    Args:
        n: the number of samples.
        c: the number of right ones, 0 to n.
        k: the number of samples drawn, 1 to n.

    Raises:
        ValueError: a number is out of range.
    """
    samples, right, drawn = (operator.index(given) for given in (n, c, k))
    if not (0 <= right <= samples and 1 <= drawn <= samples):
        raise ValueError(f"n is {n}, c {c} and k {k}; use c from 0 to n, and k from 1 to n")
    if samples - right < drawn:
        return 1.0
    fewer, more = sorted((right, drawn))
    logs = (math.log1p(-more / count) for count in range(samples - fewer + 1, samples + 1))
    return -math.expm1(math.fsum(logs))


def average_at_k(correct: Sequence[Sequence[Score]]) -> float | None:
    """Compute Avg@k: the mean score of each problem's samples, averaged over the problems.

    Args:
        correct: the scores of k samples for each problem, in [0, 1]. None leaves a sample out; a problem without scores
            is left out.

    Raises:
        ValueError: a score is outside [0, 1].
    """
    rows = [[score for score in read_scores(row, len(row)) if score is not None] for row in correct]
    means = [math.fsum(row) / len(row) for row in rows if row]
    return math.fsum(means) / len(means) if means else None


def best_of_n(scores: Sequence[float | None], n: int) -> float | None:
    """Estimate the expected best of n samples, from m samples of a problem (RuscaRL, figure 4).

    Unbiased: the mean of the maximum over all subsets of n of the m scores. For scores 0 and 1 it equals pass@n.

    Args:
        scores: m finite numbers; None leaves a sample out.
        n: at least 1.

    Returns:
        The estimate; None if fewer than n samples have a score.

    Raises:
        ValueError: n is below 1, or a score is not a finite number.
    """
    known = sorted(as_number(score) for score in scores if score is not None)
    if n < 1 or not all(map(math.isfinite, known)):
        raise ValueError(f"n is {n}, or a score is not finite; use n of at least 1, and finite scores or None")
    if len(known) < n:
        return None
    share, best = n / len(known), []  # C(i-1, n-1) / C(m, n) for the i-th lowest score, from i = m down
    for i in range(len(known), n - 1, -1):
        best.append(share * known[i - 1])
        share *= (i - n) / (i - 1) if i > 1 else 0.0
    return math.fsum(best)


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
    corrections = len(_phrase_pattern(tuple(phrases)).findall(normalised))
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


@lru_cache(maxsize=8)
def _phrase_pattern(phrases: tuple[str, ...]) -> re.Pattern[str]:
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


_A = TypeVar("_A")
_B = TypeVar("_B")


class Faithfulness(TypedDict):
    """Rates in [0, 1]; None for a rate without data."""

    faithful_reasoning_rate: float | None
    misaligned_trajectory_rate: float | None
    answer_accuracy: float | None
    step_accuracy: float | None


class Novelty(NamedTuple):
    """Mean and median of the importance ratios of responses, and the number of ratios above each threshold."""

    mean: float
    median: float
    counts: dict[float, int]


def agreement_rate(a: Sequence[Hashable | None], b: Sequence[Hashable | None]) -> float | None:
    """Compute how often two judges gave the same label, in [0, 1].

    Args:
        a: N labels of one judge; None leaves an item out.
        b: the other judge's labels of the same items.

    Raises:
        ValueError: the two differ in length.
    """
    pairs = _pairs(a, b)
    return sum(x == y for x, y in pairs) / len(pairs) if pairs else None


def cohen_kappa(a: Sequence[Hashable | None], b: Sequence[Hashable | None]) -> float | None:
    """Compute Cohen's kappa, (p_o - p_e) / (1 - p_e), in [-1, 1] (Cohen 1960; SRaR, table 6).

    p_o is the rate of agreement, p_e the rate expected from the labels' frequencies. None if p_e is 1, that is, if both
    always gave the same label. Arguments and errors are the same as for `agreement_rate`.
    """
    pairs = _pairs(a, b)
    observed = sum(x == y for x, y in pairs)
    labels_a, labels_b = Counter(x for x, _ in pairs), Counter(y for _, y in pairs)
    by_chance = sum(count * labels_b[label] for label, count in labels_a.items())
    count = len(pairs)
    return (count * observed - by_chance) / (count * count - by_chance) if by_chance < count * count else None


def step_agreement(a: Sequence[int | None], b: Sequence[int | None]) -> float | None:
    """Compute how often two judges named the same step, among the items where both named one (SRaR, table 6).

    Steps count from 1. An item with 0 (the whole response), -1 (no step) or None (no verdict) is left out.

    Raises:
        ValueError: the two differ in length.
    """
    return agreement_rate(*([step if step is not None and step >= 1 else None for step in side] for side in (a, b)))


def point_biserial(binary: Sequence[Score], x: Sequence[float | None]) -> float | None:
    """Compute the point-biserial correlation, Pearson's for a binary variable, in [-1, 1] (SRaR, table 7).

    Args:
        binary: N values 0 or 1, such as whether the answer is right; None leaves the item out.
        x: N finite numbers, such as the share of satisfied criteria; None leaves the item out.

    Returns:
        The correlation; None if either variable does not vary.

    Raises:
        ValueError: the two differ in length, or hold other values.
    """
    pairs = [(as_number(one), as_number(other)) for one, other in _pairs(binary, x)]
    if any(one not in (0.0, 1.0) or not math.isfinite(other) for one, other in pairs):
        raise ValueError("binary must hold 0, 1 or None, and x finite numbers or None")
    if len({one for one, _ in pairs}) < 2 or len({other for _, other in pairs}) < 2:
        return None
    shifted = [other - pairs[0][1] for _, other in pairs]
    largest = max(map(abs, shifted))
    return statistics.correlation([one for one, _ in pairs], [value / largest for value in shifted])


def faithfulness(answer_correct: Sequence[Score], steps_correct: Sequence[Sequence[Score]]) -> Faithfulness:
    """Compute how well reasoning and answers agree (SRaR, table 2).

    A trajectory is faithful if its answer and all its steps are right. It is misaligned if its answer is right and a
    step is wrong, or its answer is wrong and all steps are right. A trajectory without steps is neither, but counts in
    the denominator.

    Args:
        answer_correct: N values 0 or 1; a trajectory with None is left out of all rates but the accuracy of steps.
        steps_correct: N lists of values 0 or 1, one for each step. A step with None is left out. A trajectory that has
            such a step and no wrong one is left out of the first two rates.

    Raises:
        ValueError: the two differ in length, or hold other values.
    """
    if len(answer_correct) != len(steps_correct):
        raise ValueError(f"{len(answer_correct)} answers and {len(steps_correct)} lists of steps; give one of each")
    answers = read_scores(answer_correct, len(answer_correct))
    steps = [read_scores(row, len(row)) for row in steps_correct]
    if any(value not in (0.0, 1.0, None) for row in (answers, *steps) for value in row):
        raise ValueError("an answer or a step is neither 0 nor 1; use 1 for right, 0 for wrong, None for unknown")
    decided = [(a, s) for a, s in zip(answers, steps, strict=True) if a is not None and (0.0 in s or None not in s)]
    faithful = [a == 1.0 and bool(s) and 0.0 not in s for a, s in decided]
    misaligned = [bool(s) and (a == 1.0) == (0.0 in s) for a, s in decided]
    return Faithfulness(
        faithful_reasoning_rate=_mean(faithful),
        misaligned_trajectory_rate=_mean(misaligned),
        answer_accuracy=_mean([a for a in answers if a is not None]),
        step_accuracy=_mean([value for row in steps for value in row if value is not None]),
    )


def novelty(new: Sequence[float], old: Sequence[float], *, thresholds: Sequence[float] = (2, 10, 100)) -> Novelty:
    """Compute how much more probable responses became by training: ratios exp(new - old) (RuscaRL, appendix D.4).

    Args:
        new: N mean log-likelihoods per token, in nats, of responses under the trained policy.
        old: those of the same responses under the policy before training.
        thresholds: thresholds above which ratios are counted (paper: 2, 10, 100).

    Raises:
        ValueError: the two differ in length, are empty, or hold a number that is not finite.
    """
    if len(new) != len(old) or len(new) == 0:
        raise ValueError(f"{len(new)} new and {len(old)} old log-likelihoods; give one of each for every response")
    if not all(math.isfinite(one) for side in (new, old) for one in side):
        raise ValueError("a log-likelihood is not finite; leave out responses that a policy cannot generate")
    ratios = [_exp(float(after) - float(before)) for after, before in zip(new, old, strict=True)]
    counts = {threshold: sum(ratio > threshold for ratio in ratios) for threshold in thresholds}
    return Novelty(statistics.fmean(ratios), statistics.median(ratios), counts)


def self_internalization_gap(
    prompted: Sequence[Sequence[float]], conditioned: Sequence[Sequence[float]]
) -> float | None:
    """Compute the mean over responses of l_prompt - l_cond, each a mean over tokens (arXiv:2605.12474, section 3.3).

    The responses are sampled from the policy with the rubric in its prompt. The gap is at most 0 in expectation: minus
    the divergence per token of the policy without the rubric from the policy with it. It rises while the policy learns
    what the rubric asks for. In the paper it follows what strong judges say, and peaks where they see no more progress.

    Args:
        prompted: log-probabilities of the tokens of each response after the prompt alone, in nats.
        conditioned: those of the same tokens after the prompt with the rubric.

    Returns:
        None without a response that has tokens.

    Raises:
        ValueError: the numbers of responses, or of a response's tokens, differ.
    """
    pairs = list(zip(prompted, conditioned, strict=True))
    if any(len(own) != len(other) for own, other in pairs):
        raise ValueError("a response has other numbers of log-probabilities; give one for each of its tokens in both")
    gaps = [(math.fsum(own) - math.fsum(other)) / len(own) for own, other in pairs if len(own)]
    return _mean(gaps)


def semantic_distance(embeddings: Sequence[Sequence[float]]) -> float:
    """Compute the mean cosine distance, 1 - cosine, over all pairs of responses to one prompt, in [0, 2].

    The paper averages the cosine distance between the embedding vectors of 16 responses (RuscaRL, appendix D.4).

    Args:
        embeddings: N x D, one vector for each of at least 2 responses, of any length.

    Raises:
        ValueError: there are fewer than 2 vectors, they differ in size, or one is zero or not finite.
    """
    if len(embeddings) < 2:
        raise ValueError(f"{len(embeddings)} embeddings; give at least 2")
    if len({len(vector) for vector in embeddings}) > 1:
        raise ValueError("the embeddings differ in size; they must come from one model")
    lengths = [math.hypot(*vector) for vector in embeddings]
    if not all(math.isfinite(length) and length > 0 for length in lengths):
        raise ValueError("an embedding is zero or not finite, so it has no direction; leave it out")
    units = [[x / length for x in vector] for vector, length in zip(embeddings, lengths, strict=True)]
    together = math.fsum(math.fsum(column) ** 2 for column in zip(*units, strict=True))
    count = len(units)
    return min(2.0, max(0.0, 1.0 - (together - count) / (count * (count - 1))))


def _exp(x: float) -> float:
    """e^x, infinite if that exceeds the range of a float."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _pairs(a: Sequence[_A | None], b: Sequence[_B | None]) -> list[tuple[_A, _B]]:
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} entries; give one of each for every item, None where it is missing")
    return [(one, other) for one, other in zip(a, b, strict=True) if one is not None and other is not None]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
