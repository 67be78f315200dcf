"""Streamed rewards: what the lines of a streamed answer stand for, and the streams that users go through.

Knows nothing of connections, which `_connection` opens, reads and closes.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from types import TracebackType
from typing import Self

import httpx2
from pydantic import ValidationError

from trainer_client._answers import error_for_problem, read_answer
from trainer_client.errors import ConnectionFailed, ServerError
from trainer_client.wire import GroupRewards, RewardAnswer, RewardEvent, RewardSummary

NDJSON = "application/x-ndjson"
"""JSON texts, each ended by a line feed. Nothing else ends a line: U+2028 may stand in a text."""

_EXCERPT_BYTES = 200


class RewardStreamParser:
    """The lines of one streamed answer, read from bytes as they come.

    Attributes:
        begun: whether a group was given out, so that the request can no longer be sent again unseen.
        summary: the summary, once it came.
    """

    def __init__(self, base_url: str) -> None:
        self.started = False
        self.summary: RewardSummary | None = None
        self._base_url = base_url
        self._request_id: str | None = None
        self._buffer: list[bytes] = []

    def is_stream(self, response: httpx2.Response) -> bool:
        """Whether an answer comes in lines; one that does not must be read whole and given to `whole`."""
        self._request_id = response.headers.get("X-Request-Id")
        self._buffer = []
        return response.is_success and NDJSON in response.headers.get("Content-Type", "")

    def feed(self, piece: bytes) -> Iterator[GroupRewards]:
        """Give the groups whose lines end in this piece of the answer.

        Raises:
            AdjudgeError: the problem that a line told of.
            ServerError: a line is none of the contract.
        """
        ending, *others = piece.split(b"\n")
        self._buffer.append(ending)
        for beginning in others:
            line = b"".join(self._buffer)
            self._buffer = [beginning]
            yield from self._read(line)

    def end(self) -> None:
        """Say that the answer is over.

        Raises:
            ConnectionFailed: it had no summary, so that something is missing.
        """
        if self.summary is None:
            raise ConnectionFailed(
                f"the answer of {self._base_url} was cut off before its summary (request {self._request_id}); "
                "the groups that came are whole, ask again for the others",
                request_id=self._request_id,
                retryable=True,
            )

    def parse_whole(self, response: httpx2.Response) -> Iterator[GroupRewards]:
        """Give the groups of an answer in one piece, as a service sends it that cannot stream.

        Raises:
            AdjudgeError: the answer is an error, or no rewards.
        """
        answer = read_answer(response, RewardAnswer)
        self.summary = RewardSummary.model_validate(answer.model_dump(exclude={"groups"}))
        yield from answer.groups

    def _read(self, line: bytes) -> Iterator[GroupRewards]:
        if self.summary is not None or not line.strip():
            return
        try:
            read = RewardEvent.model_validate_json(line)
        except ValidationError as error:
            raise ServerError(
                "a line of the answer is no RewardLine; is this the address of an Adjudge of this version? "
                f"({line[:_EXCERPT_BYTES].decode(errors='replace')})",
                status=200,
                request_id=self._request_id,
            ) from error
        if read.problem is not None:
            raise error_for_problem(read.problem, read.problem.status)
        self.summary = read.summary
        if read.group is not None:
            self.started = True
            yield read.group


class RewardStream(Iterator[GroupRewards]):
    """The groups of one request as they finish, in whatever order that is.

    The request is sent when the first group is asked for. `close`, or leaving a `with` block, closes the
    connection, upon which the service stops what is not done.
    """

    def __init__(self, groups: Generator[GroupRewards, None, None], parser: RewardStreamParser) -> None:
        self._groups = groups
        self._parser = parser

    @property
    def summary(self) -> RewardSummary:
        """Everything of the answer but its groups.

        Raises:
            RuntimeError: the stream was not gone through to its end.
        """
        return _summary(self._parser)

    def close(self) -> None:
        """Close the connection; there are no further groups. Once is enough, and more does no harm."""
        self._groups.close()

    def __next__(self) -> GroupRewards:
        return next(self._groups)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncRewardStream(AsyncIterator[GroupRewards]):
    """`RewardStream` for code in an event loop. Cancelling the task that waits for a group closes it too."""

    def __init__(self, groups: AsyncGenerator[GroupRewards, None], parser: RewardStreamParser) -> None:
        self._groups = groups
        self._parser = parser

    @property
    def summary(self) -> RewardSummary:
        """Everything of the answer but its groups; see `RewardStream.summary`."""
        return _summary(self._parser)

    async def aclose(self) -> None:
        """Close the connection; see `RewardStream.close`."""
        await self._groups.aclose()

    async def __anext__(self) -> GroupRewards:
        return await anext(self._groups)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _summary(parser: RewardStreamParser) -> RewardSummary:
    if parser.summary is None:
        raise RuntimeError("the summary comes after the last group, and this stream has not come to its end")
    return parser.summary
