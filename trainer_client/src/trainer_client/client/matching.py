"""Compare what a client reads with what it asked for.

An answer that belongs to another request, or lacks a part of its own, can have the right form. Its rewards would go to
responses that did not earn them. Every function here says how an answer differs from its request, as a sentence for an
error message, or returns None for an answer that belongs to it. `trainer_client.client.answers` raises the error.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from trainer_client.ranking import compared_with
from trainer_client.steps import NO_STEP
from trainer_client.text.thinking import response_text
from trainer_client.wire import (
    ComparisonAnswer,
    ComparisonRequest,
    Group,
    GroupRewards,
    PinnedRubric,
    RewardAnswer,
    RewardRequest,
    RewardSummary,
    RubricVersion,
    VerdictAnswer,
    VerdictRequest,
    as_response,
    parse_reference,
)
from trainer_client.wire.groups import ResponseLike
from trainer_client.wire.rewards import ResponseReward
from trainer_client.wire.verdicts import GroupVerdicts

_SURROGATE = re.compile("[\ud800-\udfff]")


def as_sent(text: str) -> str:
    """Return a text as it is sent: half a surrogate pair, which JSON cannot carry, becomes U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


class ExpectedGroups:
    """The groups of a request that are not answered yet."""

    def __init__(self, request: RewardRequest | VerdictRequest) -> None:
        self._request = request
        self._waiting: dict[str, list[Group]] = {}
        for group in request.groups:
            self._waiting.setdefault(as_sent(group.id), []).append(group)
        self._criteria_of: dict[tuple[str, str | None], tuple[str, ...]] = {}

    def take(self, answered: GroupRewards | GroupVerdicts) -> str | None:
        """Take the group that was answered; return how it differs from the one that was sent."""
        waiting = self._waiting.get(answered.id)
        if waiting is None:
            return f"it has a group {answered.id!r}, which the request does not have"
        if not waiting:
            return f"it has the group {answered.id!r} more often than the request"
        count = len(answered.responses)
        group = next((one for one in waiting if len(one.responses) == count), None)
        if group is None:
            return f"group {answered.id!r} has {count} responses, and {len(waiting[0].responses)} were sent"
        waiting.remove(group)
        found = self._criteria_problem(group, answered) or self._rubric_problem(group, answered)
        if found is None and isinstance(answered, GroupRewards):
            found = _steps_problem(group, answered)
        return None if found is None else f"group {answered.id!r}: {found}"

    def missing(self) -> str | None:
        """Return which groups were not answered; None if all were."""
        left = [id_ for id_, groups in self._waiting.items() for _ in groups]
        if not left:
            return None
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        return f"it lacks the group {left[0]!r}{more} of the {len(self._request.groups)} that were sent"

    def _criteria_problem(self, group: Group, answered: GroupRewards | GroupVerdicts) -> str | None:
        """Compare the criteria of the verdicts with those of the rubric, as far as the request tells them."""
        given = [tuple([verdict.criterion for verdict in response.verdicts]) for response in answered.responses]
        if isinstance(self._request, RewardRequest) and self._request.reward.mode == "ranking":
            return _ranking_problem(given, self._request.reward.schedule)
        rubric = self._rubric_of(group)
        expected: tuple[str, ...] | None = None
        if self._request.protocol in (None, "likert"):  # one verdict on the whole response
            expected = given[0][:1]
        elif isinstance(rubric, str):
            expected = self._criteria_of.setdefault((rubric, answered.rubric), given[0])
        elif rubric is not None:
            expected = tuple([criterion.id for criterion in rubric.criteria])
        for place, criteria in enumerate(given):
            if expected is not None and criteria != expected:
                return f"response {place} {_difference(expected, criteria)}"
            if len(set(criteria)) < len(criteria):
                return f"response {place} has several verdicts on {_repeated(criteria)!r}"
        return None

    def _rubric_problem(self, group: Group, answered: GroupRewards | GroupVerdicts) -> str | None:
        rubric = self._rubric_of(group)
        by_digest = isinstance(rubric, str) and rubric.startswith("sha256:")
        if by_digest and answered.rubric not in (None, rubric):
            return f"it was judged by the rubric {answered.rubric}, and {rubric} was asked for"
        return None

    def _rubric_of(self, group: Group) -> Any:
        return self._request.rubric if group.rubric is None else group.rubric


def groups_problem(request: RewardRequest | VerdictRequest, answer: RewardAnswer | VerdictAnswer) -> str | None:
    """Compare the groups of a whole answer, which are in the request's order, and what it says about the request."""
    expected, order = ExpectedGroups(request), [as_sent(group.id) for group in request.groups]
    found = next((problem for group in answer.groups if (problem := expected.take(group))), None)
    if found is None and (found := expected.missing()) is None and [group.id for group in answer.groups] != order:
        found = "its groups are in another order than those of the request"
    return found or summary_problem(request, answer)


def summary_problem(request: RewardRequest | VerdictRequest, answer: RewardSummary | VerdictAnswer) -> str | None:
    """Compare what an answer says about its request, other than the groups."""
    of_request = unequal({"run": request.run, "step": request.step}, answer, unless_null=True)
    return of_request or _pinned_problem(request, answer.rubrics)


def comparisons_problem(request: ComparisonRequest, answer: ComparisonAnswer) -> str | None:
    """Compare the pairs of an answer, and the orders in which each was shown."""
    sent, got = [as_sent(pair.id) for pair in request.pairs], [pair.id for pair in answer.pairs]
    if got != sent:
        return f"its pairs {_difference(sent, got, 'an answer to')}"
    for pair in answer.pairs:
        if sorted(order.first for order in pair.orders) != ["a", "b"]:
            return f"pair {pair.id!r} was not judged once in each order"
    return unequal({"run": request.run, "step": request.step}, answer, unless_null=True)


def rubric_problem(reference: str, answer: RubricVersion) -> str | None:
    """Compare a rubric version with the reference that it was asked for by."""
    wanted = parse_reference(reference)
    if wanted.digest is not None:
        return unequal({"digest": wanted.digest}, answer)
    return unequal({"name": wanted.name, "version": wanted.version}, answer, unless_null=True)


def unequal(asked: Mapping[str, object], answer: BaseModel, *, unless_null: bool = False) -> str | None:
    """Return the first of these fields in which an answer differs from what was asked for.

    Args:
        asked: the value of each field.
        answer: the answer.
        unless_null: ignore fields that are null in what was asked for or in the answer.
    """
    for name, value in asked.items():
        got, value = getattr(answer, name), as_sent(value) if isinstance(value, str) else value
        if got != value and not (unless_null and None in (got, value)):
            return f"its {name} is {got!r}, and {value!r} was asked for"
    return None


def _pinned_problem(request: RewardRequest | VerdictRequest, used: Sequence[PinnedRubric]) -> str | None:
    """Compare the versions that were used with the references `name@3` of the request; older services name none."""
    if not any(rubric.name is not None for rubric in used):
        return None
    names = {f"{rubric.name}@{rubric.version}" for rubric in used}
    rubrics = [request.rubric if group.rubric is None else group.rubric for group in request.groups]
    for reference in dict.fromkeys(rubric for rubric in rubrics if isinstance(rubric, str)):
        name, _, version = reference.partition("@")
        if version.isdecimal() and f"{name}@{int(version)}" not in names:
            return f"it was judged by {', '.join(sorted(names))}, and {reference} was asked for"
    return None


def _ranking_problem(given: Sequence[Sequence[str]], schedule: str) -> str | None:
    """Check that each comparison of a ranking is between two responses of the group, and was made in both orders."""
    pairs = Counter[tuple[int, int]]()
    for place, criteria in enumerate(given):
        for criterion in criteria:
            opponent = compared_with(criterion)
            if opponent is None or opponent == place or opponent >= len(given):
                return f"response {place} has a verdict on {criterion!r}, which compares it with no other response"
            pairs[place, opponent] += 1
    for (first, second), times in pairs.items():
        if times > 1 or not pairs[second, first]:
            return f"the responses {first} and {second} were not compared once in each order"
    if schedule == "all_pairs" and len(pairs) != len(given) * (len(given) - 1):
        return "some of its responses were not compared with each other"
    return None


def _steps_problem(group: Group, answered: GroupRewards) -> str | None:
    for place, (sent, response) in enumerate(zip(group.responses, answered.responses, strict=True)):
        if response.steps and (found := _response_steps_problem(sent, response)):
            return f"response {place}: {found}"
    return None


def _response_steps_problem(sent: ResponseLike, answered: ResponseReward) -> str | None:
    """Check that the steps lie in the response, and that every verdict is attributed to one of them or to none."""
    response = as_response(sent)
    length, numbers = len(response_text(response)), [step.number for step in answered.steps]
    if len(set(numbers)) < len(numbers):
        return f"it has several steps of the number {_repeated(numbers)}"
    for step in answered.steps:
        if not 0 <= step.start <= step.end <= length:
            return f"step {step.number} is [{step.start}, {step.end}), and the response has {length} characters"
    for before, after in pairwise([step for step in answered.steps if step.number]):
        if after.start < before.end:
            return f"its steps {before.number} and {after.number} overlap"
    turns = 0 if isinstance(response.text, str) else sum(message.role == "assistant" for message in response.text)
    attributable = {None, NO_STEP, *range(turns + 1), *numbers}
    stray = next((verdict for verdict in answered.verdicts if verdict.step not in attributable), None)
    if stray is not None:
        return f"the verdict on {stray.criterion!r} is attributed to step {stray.step}, which it does not have"
    return None


def _difference(expected: Sequence[str], got: Sequence[str], what: str = "a verdict on") -> str:
    """Say how lists of names differ: what is too much, too little, or in another order."""
    surplus, lacking = Counter(got) - Counter(expected), Counter(expected) - Counter(got)
    if surplus and (name := next(iter(surplus))) in expected:
        return f"has {what} {name!r} more often than it was asked for"
    if surplus:
        return f"has {what} {next(iter(surplus))!r}, which was not asked for"
    if lacking:
        return f"lacks {what} {next(iter(lacking))!r}"
    return f"has {what} each, but in another order than was asked for"


def _repeated(names: Sequence[Any]) -> Any:
    return Counter(names).most_common(1)[0][0]
