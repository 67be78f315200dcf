r"""Steps of a response: where they lie in its text and its tokens, and what each is worth.

Serves step-wise rubric rewards (SRaR). Normalising across a group and giving advantages to tokens is not done
here. All text positions are Unicode code points, all ranges half-open.
"""

import operator
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, SupportsIndex

from trainer_client._criteria import CriterionLike, Score, read_criteria, read_scores
from trainer_client.final_answer import boxed_answer, extract_final_answer

__all__ = [
    "NO_STEP",
    "STEP_FORMAT",
    "WHOLE_RESPONSE",
    "Step",
    "extract_final_answer",
    "has_format",
    "split_steps",
    "step_deltas",
    "token_spans",
    "with_step_format",
]

WHOLE_RESPONSE, NO_STEP = 0, -1
"""What a verdict names in place of a step's number where it is about all of a response, or about no part of it."""

STEP_FORMAT = (
    "Work out the following problem. Write your solution as several steps, and begin each of them with "
    '"### Step N:", where N is its number: "### Step 1:", then "### Step 2:", and so on. End with the final answer in '
    "\\boxed{}.\n\nProblem:\n"
)
"""What SRaR tells the policy in training before a problem (section 7.3), in our own words: see `with_step_format`."""

STEP_HEADER = re.compile(r"^[ \t]*#{3,}[ \t]*Step[ \t]*0{0,8}([1-9][0-9]{0,8})(?!\w|[.,][0-9])", re.MULTILINE)
"""The header of a step, its number in the first group."""


class Step(NamedTuple):
    """A step: its header's number and its span [start, end) in code points, header included."""

    number: int
    start: int
    end: int


def with_step_format(prompt: str | Sequence[Mapping[str, Any]]) -> str | list[Mapping[str, Any]]:
    """Give the prompt with SRaR's format asked for before the problem (section 7.3).

    Without it a policy writes no steps that a verdict could name, and earns no format reward.

    Args:
        prompt: a text, or chat messages, where it goes before the last message of the user.

    Returns:
        A prompt of the same form; what was given is not changed.

    Raises:
        ValueError: the messages have none of the user's with a text as its content.
    """
    if isinstance(prompt, str):
        return STEP_FORMAT + prompt
    places = [place for place, message in enumerate(prompt) if message["role"] == "user"]
    if not places or not isinstance(prompt[places[-1]]["content"], str):
        raise ValueError("the prompt's last user message is missing or not plain text; it would hold the problem")
    problem = prompt[places[-1]]
    extended = {**problem, "content": STEP_FORMAT + problem["content"]}
    return [extended if place == places[-1] else message for place, message in enumerate(prompt)]


def split_steps(text: str) -> list[Step]:
    """Find the steps of a response, in the order they stand in it.

    A header is `### Step N:` that begins a line, N a positive integer. Spaces and tabs may stand before it and between
    its parts, there may be more hashes than three, and the colon may be missing; the capital S is required, and
    neither `Step 0` nor `Step 1.5` nor `Step 2a` is a header. A step runs from the line of its header to that of the
    next header, of whatever number, or to the end. A repeated number means its first span: the later ones belong to
    no step, and neither does text before the first header.

    So `#### Step 1:`, `### Step1:` and indented headers are read as SRaR's authors' code reads them (its pattern is
    `###\\s*Step\\s*\\d+\\s*:`, anywhere in a line); where we differ stands in docs/methods.md.
    """
    headers = list(STEP_HEADER.finditer(text))
    edges = [header.start() for header in headers] + [len(text)]
    steps: dict[int, Step] = {}
    for header, end in zip(headers, edges[1:], strict=True):
        number = int(header[1])
        steps.setdefault(number, Step(number, header.start(), end))
    return list(steps.values())


def has_format(text: str) -> bool:
    r"""Whether a response has step headers and a non-empty `\boxed{}` answer: SRaR's format reward."""
    # Looking for a text is a hundred times as fast as looking for a pattern, and most texts without steps have neither.
    return "###" in text and STEP_HEADER.search(text) is not None and boxed_answer(text) is not None


def step_deltas(
    criteria: Sequence[CriterionLike],
    scores: Sequence[Score],
    steps: Sequence[SupportsIndex | None],
    n_steps: int,
    *,
    suggest: float = 0.8,
    pitfall: float = -1.0,
    bonus: float = 1.0,
    count_satisfied_only: bool = False,
    keep_no_step: bool = False,
) -> dict[int, float]:
    """Sum each step's deltas (SRaR, eq. 3 and the d_k below it).

    A satisfied criterion (score 1) of kind k gives its step budget_k / N_k, an unsatisfied one 0, where N_k
    counts all criteria of that kind, scored or not. A pitfall always takes away: its budget counts as
    -|pitfall|, whatever sign it is given with. Criteria of other kinds, `answer` among them, carry no delta.

    Args:
        criteria: M criteria, as `Criterion` models or mappings; weights play no part.
        scores: M numbers in [0, 1]; None where the judge failed, and then the criterion is left out.
        steps: M step numbers: 1..n_steps, 0 for the whole response, -1 for no step (no delta). May be None,
            and is not looked at, where the score is None; may be None where the criterion carries no delta.
        n_steps: the highest step number of the response.
        suggest: what all `suggest` criteria together can give.
        pitfall: what all `pitfall` criteria together can take, as a negative number.
        bonus: what all `bonus` criteria together can give.
        count_satisfied_only: give a step a value only when a satisfied criterion is attributed to it (the
            authors' code), rather than any scored one (the paper's G_k).
        keep_no_step: also sum the deltas that belong to no step, under -1. They have no tokens, so SRaR's own
            advantages leave them out; RaR and the merged form count them in the response's sum.

    Returns:
        {step: d_k}, for the steps that have one.

    Raises:
        ValueError: a step of a scored criterion is none of these, or lengths, weights or scores are wrong.
    """
    terms = read_criteria(criteria)
    values = read_scores(scores, len(terms))
    if len(steps) != len(terms):
        raise ValueError(f"{len(steps)} steps for {len(terms)} criteria; give one step each")
    counts = Counter(term.kind for term in terms)
    budgets = {"suggest": suggest, "pitfall": -abs(pitfall), "bonus": bonus}
    deltas: dict[int, float] = {}
    for index, (term, value) in enumerate(zip(terms, values, strict=True)):
        carries = term.kind in budgets
        if value is None or (steps[index] is None and not carries):
            continue
        step = _step_number(index, steps[index], n_steps)
        satisfied = value == 1.0
        if not carries or (count_satisfied_only and not satisfied):
            continue
        if step == NO_STEP and not keep_no_step:
            continue
        delta = budgets[term.kind] / counts[term.kind] if satisfied else 0.0
        deltas[step] = deltas.get(step, 0.0) + delta
    return deltas


def _step_number(index: int, given: SupportsIndex | None, n_steps: int) -> int:
    try:
        step = operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        step = None
    if step is None or not -1 <= step <= n_steps:
        raise ValueError(
            f"steps[{index}] is {given!r}; a scored criterion's step is 1..{n_steps}, 0 (the whole response) "
            "or -1 (no step); where the judge named another, its score is None"
        )
    return step


def token_spans(offsets: Iterable[Sequence[int]], steps: Iterable[tuple[int, int, int]]) -> dict[int, tuple[int, int]]:
    """Find each step's tokens: {number: [first, last + 1)}, in token positions.

    A token belongs to the step that holds its first character: a header's tokens to its step, one that
    straddles two steps to the earlier. Special tokens, at (0, 0), belong to none, as do tokens outside every
    step. Step 0, the whole response, gets no entry, nor does a step in which no token starts (a truncated
    response has such).

    Args:
        offsets: T pairs [start, end) in code points of the text, from the tokenizer's offset mapping. Special
            tokens stand before or after the text's own; one in the middle of a step would lie in its range.
        steps: (number, start, end) triples, such as `split_steps` gives.

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
