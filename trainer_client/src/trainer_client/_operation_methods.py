"""What clients do with operations: submit, follow, read, cancel, try again."""

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator

from pydantic import JsonValue

from trainer_client import _operation_requests as requests
from trainer_client._answers import error_for, typed_errors
from trainer_client._connection import AsyncConnection, Connection
from trainer_client._operation_requests import OperationLike
from trainer_client._requests import send_options
from trainer_client.errors import AdjudgeError, ConnectionFailed, TimedOut
from trainer_client.wire import RewardAnswer, RewardRequest, VerdictAnswer, VerdictRequest
from trainer_client.wire.operation_rows import LeasedChunk
from trainer_client.wire.operations import Operation


class OperationMethods(Connection):
    """Long work: `submit` it, `follow` it, read its `results`.

    Every method raises `AdjudgeError` as `Client.rewards` does, and `NotFound` for operations that are not there.
    """

    def submit(self, request: OperationLike, *, idempotency_key: str | None = None) -> Operation:
        """Submit an operation; it is kept when this returns, and goes on whatever happens to who submitted it.

        Args:
            request: a `wire.operations` request or a mapping of its fields; `kind` says which.
            idempotency_key: submissions with the same key are one; a new key unless given.
        """
        return self._send(requests.submit_request(request, self.run, idempotency_key))

    def operations(self) -> tuple[Operation, ...]:
        """The newest operations, the newest first."""
        return self._send(requests.list_request()).operations

    def operation(self, operation_id: str) -> Operation:
        """An operation as it stands."""
        return self._send(requests.operation_request(operation_id))

    def cancel_operation(self, operation_id: str) -> Operation:
        """End an operation where it is; what is done stays done."""
        return self._send(requests.operation_request(operation_id, "DELETE"))

    def retry_operation(self, operation_id: str) -> Operation:
        """Go on with an operation that failed or was cancelled."""
        return self._send(requests.operation_request(operation_id, "POST", "/retry"))

    def operation_results(self, operation_id: str, after: int = 0) -> Iterator[dict[str, JsonValue]]:
        """Go through the results that an operation has so far, in the order in which they were made."""
        while True:
            page = self._send(requests.results_request(operation_id, after))
            yield from page.results
            if page.next_after is None or not page.results:
                return
            after = page.next_after

    def follow(self, operation_id: str, after: int = 0) -> Iterator[Operation]:
        """Give the operation whenever it changed, until it has ended; a connection that breaks is made again.

        Args:
            operation_id: the operation.
            after: the revision that was seen last.
        """
        retry_state = self._policy.start()
        while True:
            try:
                for operation in self._events(operation_id, after):
                    retry_state = self._policy.start()
                    if operation is not None:
                        after = operation.revision
                        yield operation
                        if operation.ended:
                            return
            except AdjudgeError as error:
                wait = retry_state.wait_after(_make_retryable(error))
                if wait is None:
                    raise
                self.settings.sleep(wait)

    def send_rewards(self, request: RewardRequest, chunk: LeasedChunk | None = None) -> RewardAnswer:
        """Send `POST /v1/rewards` of a request that is whole, for a chunk of an operation if so; see `rewards`."""
        return self._send(requests.chunk_rewards_request(request, chunk))

    def send_verdicts(self, request: VerdictRequest, chunk: LeasedChunk | None = None) -> VerdictAnswer:
        """Send `POST /v1/verdicts` of a request that is whole, for a chunk of an operation if so; see `verdicts`."""
        return self._send(requests.chunk_verdicts_request(request, chunk))

    def _events(self, operation_id: str, after: int) -> Generator[Operation | None, None, None]:
        """The events of one stream, and None where it says that it lives, later than at its beginning."""
        events, request = requests.OperationEventParser(), requests.events_request(operation_id, after)
        options = send_options(request, self.settings.timeout_s)
        with typed_errors(self.base_url), self._http.stream(**options) as response:
            if not response.is_success:
                response.read()
                raise error_for(response)
            for piece in response.iter_bytes():
                yield from events.feed(piece)
        raise _stream_ended_error(self.base_url)


class AsyncOperationMethods(AsyncConnection):
    """Long work; see `OperationMethods`."""

    async def submit(self, request: OperationLike, *, idempotency_key: str | None = None) -> Operation:
        """Submit an operation; see `Client.submit`."""
        return await self._send(requests.submit_request(request, self.run, idempotency_key))

    async def operations(self) -> tuple[Operation, ...]:
        """The newest operations, the newest first."""
        return (await self._send(requests.list_request())).operations

    async def operation(self, operation_id: str) -> Operation:
        """An operation as it stands."""
        return await self._send(requests.operation_request(operation_id))

    async def cancel_operation(self, operation_id: str) -> Operation:
        """End an operation where it is; what is done stays done."""
        return await self._send(requests.operation_request(operation_id, "DELETE"))

    async def retry_operation(self, operation_id: str) -> Operation:
        """Go on with an operation that failed or was cancelled."""
        return await self._send(requests.operation_request(operation_id, "POST", "/retry"))

    async def operation_results(self, operation_id: str, after: int = 0) -> AsyncIterator[dict[str, JsonValue]]:
        """Go through the results that an operation has so far; see `Client.operation_results`."""
        while True:
            page = await self._send(requests.results_request(operation_id, after))
            for result in page.results:
                yield result
            if page.next_after is None or not page.results:
                return
            after = page.next_after

    async def follow(self, operation_id: str, after: int = 0) -> AsyncIterator[Operation]:
        """Give the operation whenever it changed, until it has ended; see `Client.follow`."""
        retry_state = self._policy.start()
        while True:
            try:
                async for operation in self._events(operation_id, after):
                    retry_state = self._policy.start()
                    if operation is not None:
                        after = operation.revision
                        yield operation
                        if operation.ended:
                            return
            except AdjudgeError as error:
                wait = retry_state.wait_after(_make_retryable(error))
                if wait is None:
                    raise
                await self.settings.sleep(wait)

    async def send_rewards(self, request: RewardRequest, chunk: LeasedChunk | None = None) -> RewardAnswer:
        """Send `POST /v1/rewards` of a request that is whole, for a chunk of an operation if so; see `rewards`."""
        return await self._send(requests.chunk_rewards_request(request, chunk))

    async def send_verdicts(self, request: VerdictRequest, chunk: LeasedChunk | None = None) -> VerdictAnswer:
        """Send `POST /v1/verdicts` of a request that is whole, for a chunk of an operation if so; see `verdicts`."""
        return await self._send(requests.chunk_verdicts_request(request, chunk))

    async def _events(self, operation_id: str, after: int) -> AsyncGenerator[Operation | None, None]:
        """The same as of `OperationMethods`."""
        events, request = requests.OperationEventParser(), requests.events_request(operation_id, after)
        with typed_errors(self.base_url):
            async with self._http.stream(**send_options(request, self.settings.timeout_s)) as response:
                if not response.is_success:
                    await response.aread()
                    raise error_for(response)
                async for piece in response.aiter_bytes():
                    for operation in events.feed(piece):
                        yield operation
        raise _stream_ended_error(self.base_url)


def _stream_ended_error(base_url: str) -> ConnectionFailed:
    return ConnectionFailed(f"{base_url} ended the events before the operation has ended", retryable=True)


def _make_retryable(error: AdjudgeError) -> AdjudgeError:
    """Events that stop coming are asked for again: nothing is done twice by that."""
    if isinstance(error, TimedOut):
        error.retryable = True
    return error
