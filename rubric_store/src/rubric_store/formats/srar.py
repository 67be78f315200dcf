"""SRaR's format: one criterion a line, behind its tag: `<SUGGEST>`, `<PITFALL>`, `<BONUS>` or `<ANSWER>`.

Tags may be in any case, and blank lines mean nothing. Criteria are numbered by kind: s1, s2, p1, b1, a1.
"""

import re
from collections import Counter
from typing import Final

from pydantic import ValidationError

from rubric_store.formats.errors import FormatError, first_problem
from trainer_client.wire import Criterion, CriterionKind, RubricContent

_KINDS: Final[dict[str, CriterionKind]] = {
    "suggest": "suggest",
    "pitfall": "pitfall",
    "bonus": "bonus",
    "answer": "answer",
}
_LINE = re.compile(r"<(?P<tag>\w+)>(?P<text>.*)")
_EXPECTED = "expected <SUGGEST>, <PITFALL>, <BONUS> or <ANSWER> and then what to check"


def read(text: str) -> RubricContent:
    """Read a rubric from tagged lines; every criterion weighs 1, and a satisfied pitfall is a mistake made.

    Raises:
        FormatError: naming the line.
    """
    seen: Counter[str] = Counter()
    criteria = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            kind, description = _split(number, line.strip())
            seen[kind] += 1
            criteria.append(_criterion(number, f"{kind[0]}{seen[kind]}", kind, description))
    if not criteria:
        raise FormatError("line 1", f"the rubric is empty; {_EXPECTED}")
    try:
        return RubricContent(criteria=tuple(criteria))
    except ValidationError as error:
        raise first_problem(error, "") from None


def _split(number: int, line: str) -> tuple[CriterionKind, str]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise FormatError(f"line {number}", f"no tag; {_EXPECTED}")
    kind = _KINDS.get(match["tag"].lower())
    if kind is None:
        raise FormatError(f"line {number}", f"unknown tag <{match['tag'][:40]}>; {_EXPECTED}")
    return kind, match["text"]


def _criterion(number: int, id_: str, kind: CriterionKind, description: str) -> Criterion:
    try:
        return Criterion(id=id_, description=description, kind=kind)
    except ValidationError as error:
        raise FormatError(f"line {number}", f"after the tag: {first_problem(error, '').problem}") from None
