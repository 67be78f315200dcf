"""Operations as files: one folder each, its state replaced whole whenever it changes."""

import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from trainer_client.wire.operations import Operation, ResultPage

_STATE = "operation.json"


class OperationFiles:
    """The operations kept under one folder, which belongs to one process."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(self, operation_id: str) -> Path:
        """The operation's own folder."""
        return self._root / operation_id

    def save(self, operation: Operation) -> None:
        """Keep an operation as it stands; on the disk where its state is one that must not be forgotten."""
        folder = self.folder(operation.id)
        folder.mkdir(parents=True, exist_ok=True)
        made = folder / f"{_STATE}.new"
        with made.open("w", encoding="utf-8") as file:
            file.write(operation.model_dump_json())
            if operation.state != "running":
                file.flush()
                os.fsync(file.fileno())
        made.replace(folder / _STATE)

    def load(self) -> Iterator[Operation]:
        """Every operation there is; a folder whose operation was never kept whole is none."""
        for state in sorted(self._root.glob(f"*/{_STATE}")):
            yield Operation.model_validate_json(state.read_bytes())


def read_page(file: Path, *, after: int, limit: int, ended: bool) -> ResultPage:
    """A page of a file of results. A last line that is still being written is left for the next page."""
    results: list[dict[str, Any]] = []
    if file.exists():
        with file.open("rb") as lines:
            whole = (line for line in lines if line.endswith(b"\n"))
            results = [json.loads(line) for line in islice(whole, after, after + limit + 1)]
    more = len(results) > limit or not ended
    page = tuple(results[:limit])
    return ResultPage(results=page, next_after=after + len(page) if more else None)
