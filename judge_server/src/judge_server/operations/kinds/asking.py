"""What kinds share that ask the judge over HTTP: groups in chunks, and what an answer or an error means for a chunk."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pydantic import JsonValue

from judge_server.operations.kind import FatalChunkError, RetryableChunkError, ServiceUnavailableError
from judge_server.operations.passes import TOKEN_LIFETIME_S
from judge_server.ports import RubricSource
from judge_server.recording.tries import TRANSIENT_FAILURES
from judge_server.rubrics import find_rubric
from trainer_client import AsyncClient
from trainer_client.errors import AdjudgeError, BudgetExhausted, ConnectionFailed, NotReady, Overloaded
from trainer_client.wire import Group, RubricContent, Verdict
from trainer_client.wire.operation_rows import NewChunk
from trainer_client.wire.operations import EvaluateOperation, ScoreOperation

log = logging.getLogger("adjudge")

CHUNK_RESPONSES = 32
"""Responses of a chunk: some seconds of a judge's time, so that little is lost with a worker. Groups stay whole."""

LOG_INTERVAL_S = 60.0

_PROXY_STATUSES = frozenset({429, 502, 503, 504})
"""What stands between a worker and its service answers so while the service is away."""

_NOT_FOUND_TYPE = "urn:adjudge:not-found"

_UNAUTHORIZED_MESSAGE = (
    "the service does not let this process in (status {status}); set the same ADJUDGE_FENCE_SECRET for both, and keep "
    f"their clocks within {TOKEN_LIFETIME_S / 60:g} minutes of each other"
)
_WRONG_SERVICE_MESSAGE = (
    "what answered is not the service (status {status}); look whether ADJUDGE_URL leads to its API, and what stands "
    "between"
)

ClientFactory = Callable[[str], AsyncClient]
"""A client of the service that asks on behalf of a project, to be closed by who got it."""

GroupT = TypeVar("GroupT", bound=Group)


class RubricPinner:
    """What references stand for now, as references to a version, each looked up once."""

    def __init__(self, rubrics: RubricSource, project_id: str) -> None:
        self._rubrics = rubrics
        self._project_id = project_id
        self._known: dict[str, str] = {}

    async def pin(self, rubric: RubricContent | str | None) -> RubricContent | str | None:
        """A rubric that stays what it is; raises `UnknownRubric`."""
        if not isinstance(rubric, str):
            return rubric
        if rubric not in self._known:
            self._known[rubric] = (await find_rubric(self._rubrics, self._project_id, rubric)).reference
        return self._known[rubric]


async def split_groups(
    rubrics: RubricSource, project_id: str, request: ScoreOperation | EvaluateOperation
) -> tuple[dict[str, Any], list[NewChunk]]:
    """Options apart from groups, and those in chunks; rubrics are pinned. Raises `UnknownRubric`."""
    pins = RubricPinner(rubrics, project_id)
    options = request.model_dump(mode="json", exclude={"groups", "kind"}, exclude_unset=True)
    if isinstance(request.rubric, str):
        options["rubric"] = await pins.pin(request.rubric)
    return options, await chunk_groups(request.groups, pins)


async def chunk_groups(groups: Sequence[GroupT], pins: RubricPinner) -> list[NewChunk]:
    """Groups in chunks of about `CHUNK_RESPONSES` responses; each body has the groups and the index of the first."""
    groups = [
        group
        if not isinstance(group.rubric, str)
        else group.model_copy(update={"rubric": await pins.pin(group.rubric)})
        for group in groups
    ]
    batches: list[list[GroupT]] = [[]]
    responses = 0
    for group in groups:
        if batches[-1] and responses + len(group.responses) > CHUNK_RESPONSES:
            batches.append([])
            responses = 0
        batches[-1].append(group)
        responses += len(group.responses)
    first, chunks = 0, []
    for batch in batches:
        await asyncio.sleep(0)  # writing all of them takes long
        written: list[JsonValue] = [group.model_dump(mode="json", exclude_unset=True) for group in batch]
        chunks.append(NewChunk(len(batch), {"first": first, "groups": written}))
        first += len(batch)
    return chunks


def transient_failure_message(verdicts: Iterable[Verdict]) -> str | None:
    """What to say of verdicts that failed and that another attempt may mend; None where there are none."""
    transient = [v.failure for v in verdicts if v.failure is not None and v.failure.kind in TRANSIENT_FAILURES]
    if not transient:
        return None
    return f"{len(transient)} verdicts failed, for example: {transient[0].kind}: {transient[0].detail}"


class ThrottledLog:
    """Says in the log what keeps this process from the service, at most once a minute; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_log_at = float("-inf")

    def log_error(self, problem: str) -> None:
        """Say it, unless something was said lately."""
        if self._clock() >= self._next_log_at:
            self._next_log_at = self._clock() + LOG_INTERVAL_S
            log.error("chunks of operations wait: %s", problem)


BLOCKED_LOG = ThrottledLog()
"""Those of this process."""


@asynccontextmanager
async def translate_client_errors() -> AsyncIterator[None]:
    """Turn the client's errors into what they mean for a chunk.

    A service that is away, overloaded or not ready is waited for, however long that takes, and so is one that does not
    let this process in, or that something else answers for: another process may do the chunk. A request it refuses is
    refused for good. All else may be tried again some times.
    """
    try:
        yield
    except (ConnectionFailed, NotReady, Overloaded, BudgetExhausted) as error:
        raise ServiceUnavailableError(str(error)) from error
    except AdjudgeError as error:
        if (problem := _blocking_problem(error)) is not None:
            BLOCKED_LOG.log_error(problem)
            raise ServiceUnavailableError(str(error)) from error
        if error.problem is None and error.status in _PROXY_STATUSES:
            raise ServiceUnavailableError(str(error)) from error
        refused = error.status is not None and 400 <= error.status < 500 and not error.retryable
        raise (FatalChunkError if refused else RetryableChunkError)(str(error)) from error


def _blocking_problem(error: AdjudgeError) -> str | None:
    """What keeps this process from the service, in words that quote nothing; None where it is the chunk's own error.

    Whoever answers 413, the chunk is too large for it.
    """
    status = error.status
    if status is None or 200 <= status < 300:
        return None
    if error.problem is None:
        return None if status == 413 or status in _PROXY_STATUSES else _WRONG_SERVICE_MESSAGE.format(status=status)
    if status in (401, 403):
        return _UNAUTHORIZED_MESSAGE.format(status=status)
    return _WRONG_SERVICE_MESSAGE.format(status=status) if error.problem.type == _NOT_FOUND_TYPE else None
