"""The rows that the prefilter reads: JSON lines, each checked before any model is loaded."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIN_RESPONSES = 2
"""Of a group: one alone varies in nothing."""

_MAX_PROBLEMS_SHOWN = 10


class InvalidRows(ValueError):
    """Lines that are no rows; its text names each file, line and fault."""


@dataclass(frozen=True, slots=True)
class PrefilterRow:
    """A row of the data.

    Attributes:
        place: the file and the number of its line, for messages.
        number: of its line, from 1.
        line: as it stands in the file, without its end.
        prompt: text, or messages.
        reference: the reference answer, or None.
        responses: texts that were sampled elsewhere, or None.
    """

    place: str
    number: int
    line: bytes
    prompt: Any
    reference: object
    responses: tuple[str, ...] | None


def read_prefilter_rows(file: Path) -> list[PrefilterRow]:
    """Read all rows of a file; blank lines are passed over.

    Raises:
        BadRows: a line is none.
        OSError: the file cannot be read.
    """
    rows: list[PrefilterRow] = []
    problems: list[str] = []
    for number, line in enumerate(file.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        place = f"{file}:{number}"
        try:
            rows.append(_row(place, number, line))
        except (ValueError, RecursionError) as error:
            problems.append(f"{place}: {error}")
    if problems:
        more = [f"and {len(problems) - _MAX_PROBLEMS_SHOWN} more"] if len(problems) > _MAX_PROBLEMS_SHOWN else []
        raise InvalidRows("\n".join(problems[:_MAX_PROBLEMS_SHOWN] + more))
    return rows


def _row(place: str, number: int, line: bytes) -> PrefilterRow:
    try:
        given = json.loads(line)
    except ValueError as error:
        raise ValueError(f"this is no JSON: {error}") from error
    if not isinstance(given, Mapping):
        raise ValueError("this is no row; write an object with prompt and reference_answer")
    wrong = next(_row_problems(given), None)
    if wrong is not None:
        raise ValueError(wrong)
    responses = given.get("responses")
    reference = given.get("reference_answer")
    return PrefilterRow(
        place, number, line, given["prompt"], reference, None if responses is None else tuple(responses)
    )


def _row_problems(given: Mapping[str, Any]) -> Iterator[str]:
    if not _is_prompt(given.get("prompt")):
        yield "prompt must be text that is not empty, or a list of messages with role and content"
    reference = given.get("reference_answer")
    if isinstance(reference, bool) or not (reference is None or isinstance(reference, str | int | float)):
        yield f"reference_answer is of type {type(reference).__name__}; it must be text or a number"
    responses = given.get("responses")
    if responses is None:
        return
    texts = responses if isinstance(responses, list) and all(isinstance(text, str) for text in responses) else ()
    if len(texts) < MIN_RESPONSES:
        yield f"responses must be a list of at least {MIN_RESPONSES} texts, since their differences are measured"


def _is_prompt(given: object) -> bool:
    if isinstance(given, str):
        return bool(given)
    return (
        isinstance(given, list)
        and bool(given)
        and all(isinstance(message, Mapping) and isinstance(message.get("role"), str) for message in given)
    )
