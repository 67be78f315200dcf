"""Distributes groups over requests that a service takes: by their number, their responses and their size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainer_client.trl._rows import RowBatch, RowGroup
from trainer_client.wire import Message, RubricContent

MAX_GROUPS = 4096
"""Of one request."""
MAX_RESPONSES = 4096
"""Of one group in one request."""
MAX_CHARACTERS = 8_000_000
"""Of one request: a part of the 64 MiB that a service takes unless told otherwise, whatever the script."""


@dataclass(frozen=True, slots=True)
class GroupSlice:
    """As much of a group as fits into a request."""

    group: RowGroup
    rows: Sequence[int]


def split_requests(rows: RowBatch) -> Iterator[list[GroupSlice]]:
    """Give the parts of each request, in order; a group is in one request at most once."""
    parts: list[GroupSlice] = []
    size = 0
    for part, characters in _group_slices(rows):
        again = bool(parts) and parts[-1].group is part.group
        if parts and (again or len(parts) == MAX_GROUPS or size + characters > MAX_CHARACTERS):
            yield parts
            parts, size = [], 0
        parts.append(part)
        size += characters
    if parts:
        yield parts


def _group_slices(rows: RowBatch) -> Iterator[tuple[GroupSlice, int]]:
    for group in rows.groups:
        shared = sum(_characters(text) for text in group.fields.values())
        if isinstance(group.rubric, RubricContent):
            shared += sum(len(criterion.description) for criterion in group.rubric.criteria)
        taken: list[int] = []
        size = shared
        for row in group.rows:
            characters = _characters(rows.responses[row].text)
            if taken and (len(taken) == MAX_RESPONSES or size + characters > MAX_CHARACTERS):
                yield GroupSlice(group, taken), size
                taken, size = [], shared
            taken.append(row)
            size += characters
        yield GroupSlice(group, taken), size


def _characters(text: str | tuple[Message, ...]) -> int:
    if isinstance(text, str):
        return len(text)
    length = sum(len(message.content or "") + len(message.reasoning_content or "") for message in text)
    return length + sum(len(call.function.arguments) for message in text for call in message.tool_calls)
