"""The keyword arguments that become a request's options: their types, and where in the request each belongs.

`Client.rewards` says what they mean. Their values are checked by the wire contract, not here.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, TypedDict

from pydantic import BaseModel

from trainer_client.wire import CriterionKind, JudgingProtocol, LengthPenalty, OverlongPenalty, Priority, ReasoningPart

TOP_LEVEL_OPTIONS = frozenset({"priority", "allow_retired", "judge"})
"""Options that stand in the request itself and in none of its parts."""


class ComparisonKeywords(TypedDict, total=False):
    """How the judge is asked, wherever it is asked: `wire.ComparisonOptions`, how soon, and by what."""

    rationale: bool
    think_tokens: int
    reasoning: ReasoningPart
    grounding_characters: int | None
    template: str | None
    priority: Priority | None
    allow_retired: bool | None
    judge: str | None


class JudgingKeywords(ComparisonKeywords, total=False):
    """How the judge is asked by a rubric: `wire.JudgingOptions`."""

    protocol: JudgingProtocol | None
    criteria_per_call: int | Literal["all"] | None
    votes: int
    temperature: float | None
    truncate: bool


class RewardKeywords(JudgingKeywords, total=False):
    """How the judge is asked, and how its verdicts become a reward: also `wire.RewardOptions` but `mode`."""

    kinds: Sequence[CriterionKind] | None
    format_weight: float
    gate_fraction: float
    length_penalty: LengthPenalty | Mapping[str, Any] | None
    overlong_penalty: OverlongPenalty | Mapping[str, Any] | None
    truncation_factor: float | None


def split_options(
    method: str, options: Mapping[str, Any], parts: Mapping[str, type[BaseModel]], parameters: Iterable[str]
) -> dict[str, Any]:
    """Give the options of each part of a request, those that are fields of its model, and those of the request itself.

    A part without options is left out, and so is an option that is None: an older service need not know either.
    `named` are the parameters that `method` has beside the options.

    Raises:
        TypeError: an option belongs to no part.
    """
    part_of = {field: part for part, model in parts.items() for field in model.model_fields}
    chosen: dict[str, Any] = {}
    for name, value in options.items():
        if name not in part_of and name not in TOP_LEVEL_OPTIONS:
            [closest] = get_close_matches(name, [*part_of, *sorted(TOP_LEVEL_OPTIONS), *parameters], n=1, cutoff=0.0)
            raise TypeError(f"{method}() takes no {name!r}; the closest that it takes is {closest!r}")
        if value is None:
            continue
        if name in TOP_LEVEL_OPTIONS:
            chosen[name] = value
        else:
            chosen.setdefault(part_of[name], {})[name] = value
    return chosen
