r"""Steps of a response: their spans in its text and its tokens, and the deltas attributed to them (SRaR).

`trainer_client.advantages` normalises deltas across a group and computes advantages of tokens. All text positions are
Unicode code points, all ranges half-open.
"""

import operator
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, SupportsIndex

from trainer_client._inputs import CriterionLike, Score, read_criteria, read_scores
from trainer_client.final_answer import boxed_answer, extract_final_answer
from trainer_client.modes import Term

__all__ = [
    "NO_STEP",
    "STEP_FORMAT",
    "WHOLE_RESPONSE",
    "Step",
    "extract_final_answer",
    "has_format",
    "split_paragraphs",
    "split_steps",
    "step_deltas",
    "token_spans",
    "with_step_format",
]

WHOLE_RESPONSE, NO_STEP = 0, -1
"""The step numbers of verdicts about the whole response, and about no part of it."""

STEP_FORMAT = (
    "Work out the following problem. Write your solution as several steps, and begin each of them with "
    '"### Step N:", where N is its number: "### Step 1:", then "### Step 2:", and so on. End with the final answer in '
    "\\boxed{}.\n\nProblem:\n"
)
"""SRaR's instruction to the policy before a problem (section 7.3), in our own words; see `with_step_format`."""

STEP_HEADER = re.compile(r"^[ \t]*#{3,}[ \t]*Step[ \t]*0{0,8}([1-9][0-9]{0,8})(?!\w|[.,][0-9])", re.MULTILINE)
"""The header of a step, its number in the first group."""


class Step(NamedTuple):
    """A step: its header's number and its span [start, end) in code points, header included."""

    number: int
    start: int
    end: int


def with_step_format(prompt: str | Sequence[Mapping[str, Any]]) -> str | list[Mapping[str, Any]]:
    """Put SRaR's format instruction before the problem (section 7.3).

    Without it, a policy writes no steps that a verdict could refer to, and earns no format reward. A problem that
    already has the instruction is not given it twice.

    Args:
        prompt: a text, or chat messages, where the instruction is put at the start of the last user message.

    Returns:
        A new prompt of the same form.

    Raises:
        ValueError: the messages have no user message, or the content of the last one is not text.
    """
    return edit_problem(prompt, lambda text: text if STEP_FORMAT in text else STEP_FORMAT + text, "the problem")


def edit_problem(
    prompt: str | Sequence[Mapping[str, Any]], edit: Callable[[str], str], held: str
) -> str | list[Mapping[str, Any]]:
    """Edit a prompt that is a text, or the last user message of a chat, and return a new prompt of the same form.

    Raises:
        ValueError: that message, which must hold `held`, is missing, or its content is not text.
    """
    if isinstance(prompt, str):
        return edit(prompt)
    last = max((index for index, message in enumerate(prompt) if message["role"] == "user"), default=None)
    if last is None or not isinstance(prompt[last]["content"], str):
        raise ValueError(f"the prompt's last user message is missing or not plain text; it must hold {held}")
    edited = {**prompt[last], "content": edit(prompt[last]["content"])}
    return [*prompt[:last], edited, *prompt[last + 1 :]]


def split_steps(text: str) -> list[Step]:
    """Find the steps of a response, in the order in which they occur.

    A header is `### Step N:` at the start of a line, where N is a positive integer. It may be indented, have more than
    three hashes and other spacing between its parts, and lack the colon. The capital S is required; `Step 0`,
    `Step 1.5` and `Step 2a` are not headers. A step extends from the line of its header to the next header of any
    number, or to the end. If a number is repeated, its first span counts; the later ones belong to no step, and neither
    does text before the first header.

    `#### Step 1:`, `### Step1:` and indented headers are thus read as by the code of SRaR's authors (its pattern is
    `###\\s*Step\\s*\\d+\\s*:`, anywhere in a line). docs/reference/methods.md lists the differences.
    """
    headers = list(STEP_HEADER.finditer(text))
    edges = [header.start() for header in headers] + [len(text)]
    steps: dict[int, Step] = {}
    for header, end in zip(headers, edges[1:], strict=True):
        number = int(header[1])
        if number not in steps:
            steps[number] = Step(number, header.start(), end)
    return list(steps.values())


_PARAGRAPH = re.compile(r"\S(?:(?!\n[^\S\n]*\n).)*", re.DOTALL)


def split_paragraphs(text: str) -> list[Step]:
    """Find the paragraphs of a text, numbered from 1. Blank lines separate them, and belong to the one before."""
    starts = [match.start() for match in _PARAGRAPH.finditer(text)]
    return [Step(number, *edges) for number, edges in enumerate(pairwise([*starts, len(text)]), 1)]


def has_format(text: str) -> bool:
    r"""Whether a response has step headers and a non-empty `\boxed{}` answer: SRaR's format reward."""
    # Searching for a string is a hundred times faster than for a pattern, and most texts without steps have no "###".
    return "###" in text and STEP_HEADER.search(text) is not None and boxed_answer(text) is not None


def step_deltas(
    criteria: Sequence[CriterionLike | Term],
    scores: Sequence[Score],
    steps: Sequence[SupportsIndex | None],
    n_steps: int,
    *,
    suggest: float = 0.8,
    pitfall: float = -1.0,
    bonus: float = 1.0,
    count_satisfied_only: bool = False,
    keep_no_step: bool = False,
    soft: bool = False,
    inclusions: Sequence[float] | None = None,
) -> dict[int, float]:
    """Sum each step's deltas (SRaR, eq. 3 and the d_k below it).

    A satisfied criterion (score 1) of kind k adds budget_k / N_k to its step, an unsatisfied one 0, where N_k is the
    number of all criteria of that kind, scored or not. With `soft`, one of score s adds s * budget_k / N_k, the mean
    over verdicts that are yes with probability s (ours). A pitfall always subtracts: its budget counts as -|pitfall|.
    Criteria of other kinds, such as `answer`, have no delta.

    Args:
        criteria: M criteria; weights are ignored.
        scores: M numbers in [0, 1]; None where judging failed, which leaves the criterion out.
        steps: M step numbers: 1..n_steps, 0 for the whole response, -1 for no step. Needed where there is a delta.
        n_steps: the highest step number of the response.
        suggest, pitfall, bonus: the budget of all criteria of a kind together; that of pitfalls is negative.
        count_satisfied_only: give a step a value only if a satisfied criterion is attributed to it (the authors'
            code), rather than any scored one (the paper's G_k).
        keep_no_step: also sum the deltas of no step, under -1. They have no tokens, so SRaR's own advantages leave
            them out; RaR and the merged variant add them to the response's sum.
        soft: the scores are probabilities of yes. Not with `count_satisfied_only`.
        inclusions: M probabilities in (0, 1] with which rubric dropout judged each criterion, 1 each by default. Each
            delta is divided by its own, so that its mean over all subsets is that of the whole rubric.

    Returns:
        {step: d_k} for the steps that have a delta.

    Raises:
        ValueError: the step of a scored criterion is out of range, or lengths, weights, scores or options are wrong.
    """
    if soft and count_satisfied_only:
        raise ValueError(
            "count_satisfied_only needs to know which criteria are satisfied, and a probability does not say; leave it "
            "out, or use verdicts"
        )
    terms = read_criteria(criteria)
    values = read_scores(scores, len(terms))
    numbers = _step_numbers(terms, values, steps, n_steps)
    counts = Counter(term.kind for term in terms if not term.shadow)
    budgets = {"suggest": suggest, "pitfall": -abs(pitfall), "bonus": bonus}
    deltas: dict[int, float] = {}
    for index, (term, value, step) in enumerate(zip(terms, values, numbers, strict=True)):
        ignored = (step == NO_STEP and not keep_no_step) or (count_satisfied_only and value != 1.0)
        if value is None or step is None or ignored:
            continue
        share = value if soft else float(value == 1.0)
        delta = share * budgets[term.kind] / counts[term.kind] if share else 0.0
        deltas[step] = deltas.get(step, 0.0) + (delta if inclusions is None else delta / inclusions[index])
    return deltas


def _step_numbers(
    terms: Sequence[Term], values: Sequence[float | None], steps: Sequence[SupportsIndex | None], n_steps: int
) -> list[int | None]:
    """Read the step of each criterion that adds to one; None for one without a score, or of another kind."""
    if len(steps) != len(terms):
        raise ValueError(f"{len(steps)} steps for {len(terms)} criteria; give one step for each criterion")
    numbers: list[int | None] = []
    for index, (term, value, given) in enumerate(zip(terms, values, steps, strict=True)):
        carries = term.kind in ("suggest", "pitfall", "bonus") and not term.shadow
        unread = value is None or (given is None and not carries)
        step = None if unread else _step_number(index, given, n_steps)
        numbers.append(step if carries else None)
    return numbers


def _step_number(index: int, given: SupportsIndex | None, n_steps: int) -> int:
    try:
        step = operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        step = None
    if step is None or not -1 <= step <= n_steps:
        raise ValueError(
            f"steps[{index}] is {given!r}; use 1..{n_steps}, 0 (the whole response) or -1 (no step), or set the "
            "criterion's score to None if the judge named another step"
        )
    return step


def token_spans(offsets: Iterable[Sequence[int]], steps: Iterable[tuple[int, int, int]]) -> dict[int, tuple[int, int]]:
    """Find each step's tokens: {number: [first, last + 1)}, in token positions.

    A token belongs to the step that contains its first character, so a header's tokens belong to its step, and a token
    across two steps to the earlier one. Special tokens, at (0, 0), and tokens outside all steps belong to none. Step 0,
    the whole response, has no entry, and neither has a step in which no token starts (as in a truncated response).

    Args:
        offsets: T pairs [start, end) in code points of the text, from the tokenizer's offset mapping. Special tokens
            are expected before or after the text's own; one in the middle of a step would be in its range.
        steps: (number, start, end) triples, such as those of `split_steps`.

    Raises:
        ValueError: two steps overlap.
    """
    ordered = sorted((start, end, number) for number, start, end in steps if number != 0)
    for (_, end, number), (start, _, other) in pairwise(ordered):
        if start < end:
            raise ValueError(f"steps {number} and {other} overlap; a token belongs to one step at most")
    starts = [start for start, _, _ in ordered]
    spans: dict[int, tuple[int, int]] = {}
    for token, (begin, stop) in enumerate(offsets):
        at = bisect_right(starts, begin) - 1
        if at < 0 or begin >= ordered[at][1] or (begin == 0 and stop == 0):
            continue
        number = ordered[at][2]
        spans[number] = (spans[number][0] if number in spans else token, token + 1)
    return spans
