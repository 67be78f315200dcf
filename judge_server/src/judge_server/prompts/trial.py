"""Renders a template with every combination of what it may be given, to see what it would hide from the judge."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, get_args

from jinja2 import Template

from trainer_client.wire import CriterionKind, JudgingProtocol

_OPTIONAL = frozenset({"grounding", "reference_answer", "ground_truth", "final_answer"})
_FLAGS = frozenset({"conversation", "show_final_answer", "rationale", "several"})


@dataclass(frozen=True, slots=True)
class TrialCriterion:
    """A criterion as a template sees it; its description is like no other text."""

    description: str
    kind: str = "point"
    scale: int = 1
    points: str = "1"
    negative: bool = False
    name: str = ""
    required_elements: str = ""
    scoring_guide: str = ""
    expected_keywords: str = ""
    expected_concepts: str = ""
    verification_method: str = ""


@dataclass(frozen=True, slots=True)
class Rendering:
    """What a template made of one combination of values."""

    values: Mapping[str, Any]
    text: str


_CRITERIA = (
    *[TrialCriterion(f"⟦{kind}⟧", kind, negative=kind == "pitfall") for kind in get_args(CriterionKind)],
    TrialCriterion("⟦negative⟧", negative=True),
    TrialCriterion("⟦scale⟧", scale=20, points="20"),
    TrialCriterion("⟦guided⟧", name="n", required_elements="r", scoring_guide="s", expected_keywords="k"),
    TrialCriterion("⟦checked⟧", expected_concepts="c", verification_method="v"),
)


def render_combinations(template: Template, given: Collection[str]) -> list[Rendering]:
    """Render a template that is given these variables; it must keep to `judge_server.prompts.grammar`."""
    names = sorted(given)
    combinations = [dict(zip(names, values, strict=True)) for values in product(*map(_values, names))]
    return [Rendering(values, template.render(values)) for values in combinations]


def find_hidden(tried: Sequence[Rendering], name: str) -> str | None:
    """What of a variable the renderings do not show, and where that is so; None if every one shows all of it."""
    failed = [one.values for one in tried if not _shows(one, name)]
    if not failed:
        return None
    what = name if name not in ("criterion", "criteria") else "criterion.description"
    return f"{{{{ {what} }}}}{' of each criterion' if name == 'criteria' else ''}{_where(failed, tried, name)}"


def _shows(one: Rendering, name: str) -> bool:
    text = one.text.casefold()  # a description may be shown in other letters
    return all(wanted.casefold() in text for wanted in _texts(one.values[name]))


def _where(failed: Sequence[Mapping[str, Any]], tried: Sequence[Rendering], name: str) -> str:
    """What all the failed combinations have in common and not all combinations do."""
    common = []
    for other, value in failed[0].items():
        differs = any(one.values[other] != value for one in tried)
        if (
            differs
            and all(values[other] == value for values in failed)
            and (said := _describe_value(other, value, name))
        ):
            common.append(said)
    return f" where {' and '.join(common)}" if common else ""


def _describe_value(other: str, value: Any, name: str) -> str:
    if isinstance(value, TrialCriterion):
        return f"criterion.kind is {value.kind!r}"
    if other == name or isinstance(value, tuple):
        return ""
    if other in _OPTIONAL:
        return f"there is {'no' if value is None else 'a'} {other}"
    return f"{other} is {str(value).lower() if isinstance(value, bool) else repr(value)}"


def _values(name: str) -> tuple[Any, ...]:
    if name == "criterion":
        return _CRITERIA
    if name == "criteria":
        return (_CRITERIA, _CRITERIA[:1], ())
    if name == "protocol":
        return (*get_args(JudgingProtocol), "comparison")
    if name in _FLAGS:
        return (True, False)
    return (f"⟦{name}⟧", None) if name in _OPTIONAL else (f"⟦{name}⟧",)


def _texts(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    criteria = value if isinstance(value, tuple) else (value,) if isinstance(value, TrialCriterion) else None
    return (value,) if criteria is None else tuple([criterion.description for criterion in criteria])
