"""Rubrics whose criteria are lines of text: DRO, SRaR and FrontierScience."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from pydantic import RootModel, ValidationError

from rubric_store.formats.documents import (
    MAX_CRITERIA,
    Changes,
    FormatError,
    FormatProblem,
    InvalidValueError,
    RubricDocument,
    find_list,
    read_items,
    validation_problems,
    with_lines,
)
from rubric_store.formats.native import dump_json
from trainer_client.wire import Criterion, CriterionKind, RubricContent
from trainer_client.wire.base import RequestModel

_DRO_PATHS = (("questions",), ("rubrics",), ("decomposed_questions",), ("rubric",), ("criteria",), ("rubric_items",))
_BULLET = re.compile(r"\A\s*+(?:[-*•]|\(?[0-9]{1,3}[.)])\s++")
_EXPECTED_DRO = 'a list of questions ["Does the response …?"], alone or under "questions"'


class _DroItem(RootModel[str]):
    pass


def read_dro(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from parsed JSON, a whole row or just its list; raises `InvalidValueError`.

    DRO's format: a list of yes/no questions, as JSON `["Does the response …?", …]` or one per line.

    Lines may be numbered or bulleted. A row may hold the list under `questions`, `rubrics`, `rubric` or InFoBench's
    `decomposed_questions`. Questions become criteria `q1`, `q2`… of weight 1, satisfied if the answer is yes. A list
    may hold statements instead, as data sets of plans have them: `{"Rubric": ["The plan names a budget.", …]}`.
    """
    path, items = find_list(value, _DRO_PATHS, _EXPECTED_DRO)
    return read_items(items, path, _DroItem, _dro_fields, changes=changes)


def read_dro_lines(text: str) -> RubricDocument:
    """Read a rubric from lines; raises `FormatError` with every line that is not a question."""
    lines = [(number, _BULLET.sub("", line).strip()) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    wrong = [number for number, line in lines if not line.endswith("?")]
    if wrong or not lines:
        raise FormatError(
            [FormatProblem("", f"expected a question that ends with ?, or {_EXPECTED_DRO}", n) for n in wrong or [1]]
        )
    try:
        return read_dro([line for _, line in lines], [])
    except InvalidValueError as error:
        numbers = [lines[path[0]][0] if path and isinstance(path[0], int) else 1 for path, _ in error.found]
        raise FormatError(
            [FormatProblem("", message, n) for n, (_, message) in zip(numbers, error.found, strict=True)]
        ) from None


def write_dro(document: RubricDocument) -> str:
    """Write the list as JSON."""
    return dump_json([criterion.description for criterion in document.content.criteria])


def not_in_dro(criterion: Criterion) -> Iterator[str]:
    """Why the format cannot hold a criterion: in it a yes is always good."""
    if criterion.weight <= 0 or criterion.kind == "pitfall":
        yield "in DRO's lists a yes is always good; reword it as a criterion with a positive weight"


def _dro_fields(index: int, item: _DroItem) -> dict[str, Any]:
    return {"id": f"q{index + 1}", "description": item.root}


_KINDS: Final[tuple[CriterionKind, ...]] = ("suggest", "pitfall", "bonus", "answer")
_SRAR_LINE = re.compile(r"<(?P<tag>\w+)>(?P<text>.*)")
_EXPECTED_SRAR = "expected <SUGGEST>, <PITFALL>, <BONUS> or <ANSWER> and then what to check"


def read_srar_lines(text: str) -> RubricDocument:
    """Read a rubric from tagged lines; raises `FormatError` with every invalid line.

    SRaR's format: one criterion per line behind a tag, `<SUGGEST>`, `<PITFALL>`, `<BONUS>` or `<ANSWER>`.

    Tags are case-insensitive, and blank lines are ignored. Criteria are numbered by kind: s1, s2, p1, b1, a1. Each
    weighs 1; a satisfied pitfall means that the mistake was made.
    """
    seen: Counter[str] = Counter()
    criteria: list[Criterion] = []
    problems: list[FormatProblem] = []
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise FormatError.of(f"the rubric is empty; {_EXPECTED_SRAR}", 1)
    if len(lines) > MAX_CRITERIA:
        at, _ = lines[MAX_CRITERIA]
        raise FormatError.of(f"a rubric has at most {MAX_CRITERIA}, and this is one more", at, "criteria")
    for at, line in lines:
        match = _SRAR_LINE.fullmatch(line)
        kind = next((one for one in _KINDS if match and match["tag"].lower() == one), None)
        if match is None or kind is None:
            what = "no tag" if match is None else f"unknown tag <{match['tag'][:40]}>"
            problems.append(FormatProblem("", f"{what}; {_EXPECTED_SRAR}", at))
            continue
        seen[kind] += 1
        try:
            criteria.append(Criterion(id=f"{kind[0]}{seen[kind]}", description=match["text"], kind=kind))
        except ValidationError as error:
            found = validation_problems(error)
            problems += [FormatProblem("", f"after the tag: {message}", at) for _, message in found]
    if problems:
        raise FormatError(problems)
    return RubricDocument(content=RubricContent(criteria=tuple(criteria)))


def write_srar(document: RubricDocument) -> str:
    """Write the tagged lines."""
    return "".join(f"<{one.kind.upper()}> {one.description}\n" for one in document.content.criteria)


def not_in_srar(criterion: Criterion) -> Iterator[str]:
    """Why the format cannot hold a criterion: a kind without a tag, several lines, or a weight that is not positive."""
    if criterion.kind not in _KINDS:
        yield f"SRaR has no tag for the kind {criterion.kind!r}; it has suggest, pitfall, bonus and answer"
    elif criterion.kind != "pitfall" and criterion.weight <= 0:
        yield f"SRaR cannot express a weight of 0 or less, and this one is {criterion.weight:g}"
    if set("\n\r") & set(criterion.description):
        yield "SRaR has one line per criterion, and this one has several; write it in one"


_FRONTIERSCIENCE_LINE = re.compile(
    r"^[ \t]*+(?:(?:[-•]|\*(?!\*)|\d{1,3}[.)])[ \t]*+)?\*{0,2}points?\*{0,2}[ \t]*+:\*{0,2}[ \t]*+"
    r"(?P<points>[-+]?\d{1,6}(?:\.\d{1,6})?)[ \t]*+(?:[,;|.–-][ \t]*+)?\*{0,2}item\*{0,2}[ \t]*+:\*{0,2}[ \t]*+",
    re.IGNORECASE | re.MULTILINE,
)


class _FrontierscienceItem(RequestModel):
    item: str
    points: float


def is_frontierscience(value: object) -> bool:
    """Whether a value is a text in this format."""
    return isinstance(value, str) and _FRONTIERSCIENCE_LINE.search(value) is not None


def read_frontierscience(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from its text; raises `InvalidValueError`.

    FrontierScience's format: one text of `Points: 1.5, Item: …`, where an item may go on in the lines after it.
    """
    found = list(_FRONTIERSCIENCE_LINE.finditer(value)) if isinstance(value, str) else []
    if not found or not isinstance(value, str):
        raise InvalidValueError.at((), 'expected lines such as "Points: 1.5, Item: what to check"')
    if before := value[: found[0].start()].strip():
        changes.append(((), f"the text before the first item is not kept: {before[:60]!r}"))
    ends = [*(match.start() for match in found[1:]), len(value)]
    items = [
        {"points": float(match["points"]), "item": value[match.end() : end].strip()}
        for match, end in zip(found, ends, strict=True)
    ]
    names = {"description": "item", "weight": "points"}
    return read_items(items, (), _FrontierscienceItem, _frontierscience_fields, names)


def read_frontierscience_text(text: str, changes: Changes) -> RubricDocument:
    """Read a rubric from a file's text; raises `FormatError`."""
    try:
        return read_frontierscience(text, changes)
    except InvalidValueError as error:
        starts = [text.count("\n", 0, match.start()) + 1 for match in _FRONTIERSCIENCE_LINE.finditer(text)]

        def lines(paths: Any) -> dict[Any, int]:
            return {path: starts[path[0]] if path else 1 for path in paths}

        raise with_lines(error, lines) from None


def _frontierscience_fields(index: int, item: _FrontierscienceItem) -> dict[str, Any]:
    kind = "pitfall" if item.points < 0 else "point"
    return {"id": f"c{index + 1}", "description": item.item, "weight": item.points, "kind": kind}
