"""SRaR's format: one criterion per line behind a tag, `<SUGGEST>`, `<PITFALL>`, `<BONUS>` or `<ANSWER>`.

Tags are case-insensitive, and blank lines are ignored. Criteria are numbered by kind: s1, s2, p1, b1, a1. Each weighs
1; a satisfied pitfall means that the mistake was made.
"""

import re
from collections import Counter
from typing import Final

from pydantic import ValidationError

from rubric_store.formats.documents import MAX_CRITERIA, FormatError, FormatProblem, RubricDocument, validation_problems
from trainer_client.wire import Criterion, CriterionKind, RubricContent

_KINDS: Final[dict[str, CriterionKind]] = {
    "suggest": "suggest",
    "pitfall": "pitfall",
    "bonus": "bonus",
    "answer": "answer",
}
_LINE = re.compile(r"<(?P<tag>\w+)>(?P<text>.*)")
_EXPECTED = "expected <SUGGEST>, <PITFALL>, <BONUS> or <ANSWER> and then what to check"


def read_lines(text: str) -> RubricDocument:
    """Read a rubric from tagged lines; raises `FormatError` with every invalid line."""
    seen: Counter[str] = Counter()
    criteria: list[Criterion] = []
    problems: list[FormatProblem] = []
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise FormatError([FormatProblem("", f"the rubric is empty; {_EXPECTED}", 1)])
    if len(lines) > MAX_CRITERIA:
        at, _ = lines[MAX_CRITERIA]
        raise FormatError([FormatProblem("criteria", f"a rubric has at most {MAX_CRITERIA}, and this is one more", at)])
    for at, line in lines:
        match = _LINE.fullmatch(line)
        kind = _KINDS.get(match["tag"].lower()) if match else None
        if match is None or kind is None:
            what = "no tag" if match is None else f"unknown tag <{match['tag'][:40]}>"
            problems.append(FormatProblem("", f"{what}; {_EXPECTED}", at))
            continue
        seen[kind] += 1
        try:
            criteria.append(Criterion(id=f"{kind[0]}{seen[kind]}", description=match["text"], kind=kind))
        except ValidationError as error:
            problems += [
                FormatProblem("", f"after the tag: {message}", at) for _, message in validation_problems(error)
            ]
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
    problems = [FormatProblem(f"criterion {one.id}", problem) for one in criteria for problem in _unsupported(one)]
    if problems:
        raise FormatError(problems)
    return "".join(f"<{one.kind.upper()}> {one.description}\n" for one in criteria)


def _unsupported(criterion: Criterion) -> list[str]:
    problems = []
    if criterion.kind not in _KINDS:
        problems.append(f"SRaR has no tag for the kind {criterion.kind!r}; it has suggest, pitfall, bonus and answer")
    elif criterion.kind != "pitfall" and criterion.weight <= 0:
        problems.append(f"SRaR cannot express a weight of 0 or less, and this one is {criterion.weight:g}")
    if set("\n\r") & set(criterion.description):
        problems.append("SRaR has one line per criterion, and this one has several; write it in one")
    return problems
