"""Reading what `adjudge score` scores: a JSONL file of groups, one bad line costing only itself."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rubric_store import FormatError, read_rubric
from trainer_client.wire import Group
from trainer_client.wire.problems import field_errors


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no group, and why."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class GroupLine:
    """A group, and the number of the line it stands on."""

    number: int
    group: Group


def read_groups(file: Path) -> Iterator[GroupLine | BadLine]:
    """Each line's group, in order; blank lines are passed over.

    A line is a group of the wire contract (`prompt`, `responses`, …). Its `id` is `line-N` unless given, and its
    `rubric` may also be the text of a rubric in any format that `adjudge rubrics publish` reads.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                if isinstance(row, dict):
                    yield GroupLine(number, _group(number, row))
                else:
                    yield BadLine(number, "this is no group; write an object with prompt and responses")
            except ValidationError as error:
                first = field_errors(error.errors())[0]
                yield BadLine(number, f"{first.field}: {first.message}")
            except FormatError as error:
                yield BadLine(number, f"rubric: {error}")
            except (ValueError, RecursionError) as error:
                yield BadLine(number, f"not JSON: {error}")


def _group(number: int, row: dict[str, Any]) -> Group:
    row = {"id": f"line-{number}"} | row
    rubric = row.get("rubric")
    if (isinstance(rubric, str) and "\n" in rubric) or isinstance(rubric, list):
        row["rubric"] = read_rubric(rubric if isinstance(rubric, str) else json.dumps(rubric))
    return Group.model_validate(row)


def read_rubric_argument(text: str) -> Any:
    """What `--rubric` means: the content of a file of that name, else a reference into the store.

    Raises:
        FormatError: the file is no rubric.
    """
    path = Path(text)
    return read_rubric(path.read_text(encoding="utf-8")) if path.is_file() else text


def one_response(group: Group, index: int) -> Mapping[str, Any]:
    """The group with only one of its responses: groups may come in parts, and progress wants small ones."""
    return group.model_copy(update={"responses": (group.responses[index],)}).model_dump(exclude_none=True)
