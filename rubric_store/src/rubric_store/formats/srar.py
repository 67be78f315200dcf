"""SRaR's format: one criterion a line, behind its tag: `<SUGGEST>`, `<PITFALL>`, `<BONUS>` or `<ANSWER>`.

Tags may be in any case, and blank lines mean nothing. Criteria are numbered by kind: s1, s2, p1, b1, a1. Each weighs
1; a satisfied pitfall is a mistake made.
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
    """Read a rubric from tagged lines; raises `FormatError` with every line that is wrong."""
    seen: Counter[str] = Counter()
    criteria: list[Criterion] = []
    problems: list[FormatProblem] = []
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise FormatError([FormatProblem("", f"the rubric is empty; {_EXPECTED}", 1)])
    if len(lines) > MAX_CRITERIA:
        at, _ = lines[MAX_CRITERIA]
        raise FormatError(
            [FormatProblem("criteria", f"a rubric has at most {MAX_CRITERIA}, and here begins one more", at)]
        )
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
    """The tagged lines.

    Raises:
        FormatError: a criterion is of a kind that has no tag, has several lines, or weighs nothing or less although
            what it says is good.
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
        problems.append(f"SRaR's lines have no weights, and this one's is {criterion.weight:g}, not above 0")
    if set("\n\r") & set(criterion.description):
        problems.append("SRaR has one line for each, and this one has several; write it in one")
    return problems
