"""The papers' structural rules for rubrics, and which paper's rubric a rubric looks like."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal

from rubric_store.formats import rgr
from rubric_store.lint.rules import Finding, pattern
from trainer_client.wire import Criterion
from trainer_client.wire.criteria import GUIDANCE_FIELDS

System = Literal["rgr", "srar", "grounded", "dro", "ruscarl"]
MIN_RGR_CRITERIA, MAX_RGR_CRITERIA = 3, 10
MAX_SRAR_CRITERIA = 8
MIN_GROUNDED_CRITERIA, MAX_GROUNDED_CRITERIA = 5, 10
MAX_POINTS = 10.0
_SRAR_KINDS = frozenset({"suggest", "pitfall", "bonus", "answer"})


def apparent_system(criteria: Sequence[Criterion]) -> System | None:
    """The paper whose rubrics look like this one, by kinds, fields, wording and points; None if none does."""
    kinds = {criterion.kind for criterion in criteria}
    if kinds & {"suggest", "bonus", "answer"}:
        return "srar"
    if kinds & {"factual", "process"}:
        return "rgr"
    if any(criterion.scoring_guide or criterion.required_elements for criterion in criteria):
        return "grounded"
    if all(criterion.description.endswith("?") for criterion in criteria):
        return "dro"
    if any(criterion.weight < 0 for criterion in criteria):
        return "ruscarl"
    return None


def check_structure(criteria: Sequence[Criterion], system: System) -> list[Finding]:
    """Findings where a rubric breaks the rules of a system."""
    return list(_CHECKS[system](criteria))


def _rgr(criteria: Sequence[Criterion]) -> Iterator[Finding]:
    yield from _check_count("rgr-count", criteria, MIN_RGR_CRITERIA, MAX_RGR_CRITERIA)
    for one in criteria:
        if one.kind not in ("factual", "process"):
            prefix = (
                "; its text has the prefix, so import it as format rgr" if rgr.PREFIX.match(one.description) else ""
            )
            yield _error("rgr-category", one, f"it is {one.kind}", f"make it factual or process{prefix}")
        if not (rgr.MIN_WEIGHT <= one.weight <= rgr.MAX_WEIGHT and one.weight.is_integer()):
            yield _error("rgr-weight", one, f"its weight is {one.weight:g}", "give it a whole number from 1 to 5")


def _srar(criteria: Sequence[Criterion]) -> Iterator[Finding]:
    if len(criteria) > MAX_SRAR_CRITERIA:
        problem = f"it has {len(criteria)} items, and the paper's prompt asks for at most {MAX_SRAR_CRITERIA}"
        yield Finding("srar-count", "warning", None, problem, "merge or drop the least important")
    kinds = [criterion.kind for criterion in criteria]
    if "suggest" not in kinds:
        yield Finding("srar-suggest", "error", None, "no item is a SUGGEST", "add a step that a right solution takes")
    if (answers := kinds.count("answer")) != 1:
        problem = f"{answers or 'no'} items are an ANSWER"
        yield Finding("srar-answer", "error", None, problem, "state the final answer in exactly one")
    for one in criteria:
        if one.kind not in _SRAR_KINDS:
            yield _error("srar-kind", one, f"it is {one.kind}", "make it suggest, pitfall, bonus or answer")


def _grounded(criteria: Sequence[Criterion]) -> Iterator[Finding]:
    yield from _check_count("grounded-count", criteria, MIN_GROUNDED_CRITERIA, MAX_GROUNDED_CRITERIA)
    for one in criteria:
        missing = [field for field in GUIDANCE_FIELDS if not getattr(one, field)]
        if missing:
            yield _error("grounded-fields", one, f"it has no {', '.join(missing)}", "fill in all nine fields")
        if one.weight < 0:
            yield _error("grounded-weight", one, f"its weight is {one.weight:g}", "give it one of at least 0")
    if sum(criterion.weight for criterion in criteria) <= 0:
        yield Finding("grounded-total", "error", None, "its weights add up to 0", "give some criterion a weight")


def _dro(criteria: Sequence[Criterion]) -> Iterator[Finding]:
    for one in criteria:
        if not _asks_yes_or_no(one.description):
            advice = "word it like: Does the response …?"
            yield Finding("dro-question", "warning", one.id, "it is not a yes/no question", advice)
        if one.weight <= 0 or one.kind == "pitfall":
            yield _error(
                "dro-sign",
                one,
                "a yes to it does not mean a good response",
                "word it so that a good response gets a yes",
            )


def _asks_yes_or_no(text: str) -> bool:
    """Whether a text is a yes/no question, possibly after an introduction such as `In the table, …`."""
    starts = [0, *(match.end() for match in re.finditer(r"[,:.]\s+", text))]
    return text.endswith("?") and any(pattern("questions").match(text, start) for start in starts)


def _ruscarl(criteria: Sequence[Criterion]) -> Iterator[Finding]:
    for one in criteria:
        if abs(one.weight) > MAX_POINTS:
            yield _error("ruscarl-points", one, f"it has {one.weight:g} points", "give it -10 to 10")
    if not any(one.weight > 0 for one in criteria):
        yield Finding("ruscarl-positive", "error", None, "no points are positive", "add what a good response has")


def _check_count(code: str, criteria: Sequence[Criterion], minimum: int, maximum: int) -> Iterator[Finding]:
    if not minimum <= len(criteria) <= maximum:
        advice = "merge or drop the least important" if len(criteria) > maximum else "add what else a good response has"
        yield Finding(code, "error", None, f"it has {len(criteria)} criteria, not {minimum} to {maximum}", advice)


def _error(code: str, criterion: Criterion, problem: str, advice: str) -> Finding:
    return Finding(code, "error", criterion.id, problem, advice)


_CHECKS: Final[dict[System, Callable[[Sequence[Criterion]], Iterator[Finding]]]] = {
    "rgr": _rgr,
    "srar": _srar,
    "grounded": _grounded,
    "dro": _dro,
    "ruscarl": _ruscarl,
}
