"""SRaR's format: one criterion per line behind a tag, `<SUGGEST>`, `<PITFALL>`, `<BONUS>` or `<ANSWER>`.

Tags are case-insensitive, and blank lines are ignored. Criteria are numbered by kind: s1, s2, p1, b1, a1. Each weighs
1; a satisfied pitfall means that the mistake was made.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from pydantic import ValidationError

from rubric_store.formats.documents import MAX_CRITERIA, FormatError, FormatProblem, RubricDocument, validation_problems
from trainer_client.wire import Criterion, CriterionKind, RubricContent

_KINDS: Final[tuple[CriterionKind, ...]] = ("suggest", "pitfall", "bonus", "answer")
_LINE = re.compile(r"<(?P<tag>\w+)>(?P<text>.*)")
_EXPECTED = "expected <SUGGEST>, <PITFALL>, <BONUS> or <ANSWER> and then what to check"


def read_lines(text: str) -> RubricDocument:
    """Read a rubric from tagged lines; raises `FormatError` with every invalid line."""
    seen: Counter[str] = Counter()
    criteria: list[Criterion] = []
    problems: list[FormatProblem] = []
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise FormatError.of(f"the rubric is empty; {_EXPECTED}", 1)
    if len(lines) > MAX_CRITERIA:
        at, _ = lines[MAX_CRITERIA]
        raise FormatError.of(f"a rubric has at most {MAX_CRITERIA}, and this is one more", at, "criteria")
    for at, line in lines:
        match = _LINE.fullmatch(line)
        kind = next((one for one in _KINDS if match and match["tag"].lower() == one), None)
        if match is None or kind is None:
            what = "no tag" if match is None else f"unknown tag <{match['tag'][:40]}>"
            problems.append(FormatProblem("", f"{what}; {_EXPECTED}", at))
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


def write(document: RubricDocument) -> str:
    """Write the tagged lines.

    Raises:
        FormatError: a criterion's kind has no tag, its text has several lines, or it is not a pitfall and its weight is
            not positive.
    """
    criteria = document.content.criteria
    if error := FormatError.of_criteria(criteria, _unsupported):
        raise error
    return "".join(f"<{one.kind.upper()}> {one.description}\n" for one in criteria)


def _unsupported(criterion: Criterion) -> Iterator[str]:
    if criterion.kind not in _KINDS:
        yield f"SRaR has no tag for the kind {criterion.kind!r}; it has suggest, pitfall, bonus and answer"
    elif criterion.kind != "pitfall" and criterion.weight <= 0:
        yield f"SRaR cannot express a weight of 0 or less, and this one is {criterion.weight:g}"
    if set("\n\r") & set(criterion.description):
        yield "SRaR has one line per criterion, and this one has several; write it in one"
