"""Between the rows of operations and the messages of the wire: packing, and how far an operation is."""

import hashlib
import json
import zlib
from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any

from sqlalchemy import Row

from trainer_client.wire.answers import Usage
from trainer_client.wire.operation_rows import ChunkOutcome
from trainer_client.wire.operations import Operation, OperationProgress, ResultPage

MAX_LISTED_BYTES = 16 * 1024
"""Of JSON, what a request may have to stand in a list, so that a list of large ones costs little."""

MAX_PAGE_BYTES = 2**20
"""What the results of a page have together, packed; their JSON is a multiple of it."""


def pack(value: Any) -> bytes:
    """A value as compressed JSON."""
    return zlib.compress(as_json(value))


def unpack(body: bytes) -> Any:
    """The value that was packed."""
    return json.loads(zlib.decompress(body))


def unpack_small(body: bytes | None) -> Any:
    """The value that was packed; an empty object for what is not there, or has more than `MAX_LISTED_BYTES`."""
    text = b"" if body is None else zlib.decompressobj().decompress(body, MAX_LISTED_BYTES + 1)
    return json.loads(text) if 0 < len(text) <= MAX_LISTED_BYTES else {}


def as_json(value: Any) -> bytes:
    """Canonical JSON; half a surrogate pair is written as its escape."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def digest(text: bytes) -> bytes:
    """32 bytes that stand for a text."""
    return hashlib.sha256(text).digest()


def operation_of(row: Row[Any], now: datetime, *, listed: bool = False) -> Operation:
    """An operation as it stands, with how long it has taken and will take; in a list, without a large request.

    Takes as long as its request is large: not for an event loop.
    """
    progress = OperationProgress.model_validate(row.progress)
    seconds = 0.0 if row.started_at is None else max(0.0, ((row.ended_at or now) - row.started_at).total_seconds())
    new, left = progress.done - progress.known, (progress.total or 0) - progress.done
    rate = new / seconds if new > 0 and seconds > 0 else None
    eta_s = left / rate if rate and row.ended_at is None else None
    return Operation(
        id=row.operation_id,
        project_id=row.project_id,
        kind=row.kind,
        request=unpack_small(row.request) if listed else unpack(row.request),
        state=row.state,
        revision=row.revision,
        progress=progress.model_copy(update={"seconds": seconds, "rate": rate, "eta_s": eta_s}),
        usage=Usage.model_validate(row.usage),
        summary=None if row.summary is None else unpack(row.summary),
        problem=row.problem,
        tries=row.tries,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        expires_at=row.expires_at,
    )


def results_per_page(sizes: Sequence[int]) -> int:
    """How many results of these sizes go into a page: the first, and all that `MAX_PAGE_BYTES` have room for."""
    return max(1, sum(total_bytes <= MAX_PAGE_BYTES for total_bytes in accumulate(sizes)))


def result_page(bodies: Sequence[bytes], next_after: int | None) -> ResultPage:
    """A page of packed results; not for an event loop."""
    return ResultPage(results=tuple([unpack(body) for body in bodies]), next_after=next_after)


def values_after_chunk(row: Row[Any], inputs: int, outcome: ChunkOutcome) -> dict[str, Any]:
    """The values of an operation's row once a chunk's outcome entered it: progress, usage, how many results."""
    progress = dict(row.progress)
    discarded = dict(progress.get("discarded", {}))
    for reason, count in outcome.discarded.items():
        discarded[reason] = discarded.get(reason, 0) + count
    counts = {"done": inputs, "made": len(outcome.results), **outcome.counts, **_tokens(outcome.usage)}
    for name, count in counts.items():
        progress[name] = progress.get(name, 0) + count
    progress["discarded"] = discarded
    return {**values_after_attempt(row, outcome, progress), "results": row.results + len(outcome.results)}


def values_after_attempt(
    row: Row[Any], outcome: ChunkOutcome, progress: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The same for an attempt that left the chunk undone: what it cost, and nothing else."""
    if progress is None:
        progress = dict(row.progress)
        for name, count in _tokens(outcome.usage).items():
            progress[name] = progress.get(name, 0) + count
    used = {name: row.usage.get(name, 0) + spent for name, spent in outcome.usage.model_dump().items()}
    return {"progress": progress, "usage": used}


def _tokens(usage: Usage) -> dict[str, int]:
    return {
        "calls": usage.judge_calls,
        "tokens_computed": usage.prompt_tokens_computed,
        "tokens_reused": usage.prompt_tokens_reused,
        "tokens_written": usage.tokens_written,
    }
