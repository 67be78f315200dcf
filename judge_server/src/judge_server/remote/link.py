"""A client for one judge process over HTTP, which maps every way the connection can fail to an error of its own."""

import hashlib
import json
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from http import HTTPStatus
from typing import NoReturn

import httpx2
from pydantic import TypeAdapter, ValidationError

from judge_server.engines.openai.http import retry_after_s
from judge_server.errors import EngineStartError, NotReady, Overloaded
from judge_server.observability.tracing import propagation_headers
from judge_server.ports import Batch, EngineIdentity
from judge_server.remote.messages import PROTOCOL_VERSION, Handshake, ResultEvent, ShardRequest, TokenCount
from trainer_client import __version__
from trainer_client.wire import Problem

CONNECT_TIMEOUT_S = 5.0
HEARTBEATS_MISSED = 3
"""How many heartbeats a judge may miss before the connection counts as lost."""

ROOT = "/internal/v1"
BATCH = TypeAdapter(Batch)
_JSON = {"Content-Type": "application/json"}

_BROKEN = (httpx2.HTTPError, OSError, RuntimeError, AttributeError)
"""What a broken connection raises. If it is reset during connect, httpx2 asks uvloop for a closed socket."""


class JudgeUnavailable(Exception):
    """A judge did not answer, or not as a judge should; the message gives the details."""


class JudgeNotReady(JudgeUnavailable):
    """A judge took no calls: no connection could be made, or it is not ready."""


class ProtocolMismatch(JudgeUnavailable):
    """A judge speaks another protocol, because a rolling upgrade has not reached it or this api."""

    def __init__(self, url: str, protocol: object) -> None:
        super().__init__(
            f"the judge at {url} speaks protocol {protocol} and this api {PROTOCOL_VERSION} (Adjudge {__version__}); "
            "it is not used until both run the same version"
        )
        self.protocol = protocol


def identity_digest(identity: EngineIdentity) -> str:
    """Hash an identity without its concurrency. Judges with equal digests give the same measurement."""
    parts = asdict(identity)
    del parts["concurrent_batches"]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class JudgeClient:
    """A client for the judge process at `url`; `token` is the token it requires, if any."""

    def __init__(self, url: str, token: str | None, *, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        self._client = httpx2.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),  # health checks have a timeout of their own
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0),
            transport=transport,
        )
        self._read_timeout_s: float | None = None

    async def handshake(self) -> Handshake:
        """Ask the judge for its identity and state.

        Raises:
            EngineStartError: it refuses the token.
            ProtocolMismatch: it speaks another protocol.
            JudgeUnavailable: it does not answer, or is not a judge.
        """
        try:
            answer = await self._client.get(f"{ROOT}/judge")
        except _BROKEN as error:
            raise self._unavailable(error) from error
        if answer.status_code == HTTPStatus.UNAUTHORIZED:
            raise EngineStartError(
                f"the judge at {self.url} refuses the token; set ADJUDGE_JUDGE_TOKEN to the same secret on both sides"
            )
        if answer.status_code != HTTPStatus.OK:
            raise JudgeUnavailable(f"the judge at {self.url} answered HTTP {answer.status_code}")
        try:
            protocol = answer.json().get("protocol")
            if protocol != PROTOCOL_VERSION:
                raise ProtocolMismatch(self.url, protocol)
            handshake = Handshake.model_validate_json(answer.content)
        except (ValidationError, ValueError, AttributeError) as error:
            raise JudgeUnavailable(
                f"the server at {self.url} is not a judge; it answered {answer.text[:80]!r}"
            ) from error
        self._read_timeout_s = HEARTBEATS_MISSED * handshake.heartbeat_s or None
        return handshake

    async def ask(self, shard_request: ShardRequest) -> AsyncGenerator[ResultEvent, None]:
        """Have calls answered, and yield their outcomes. Closing the generator drops unanswered calls.

        Raises:
            JudgeUnavailable: it went down, missed its heartbeats, or is no longer the judge asked for.
            Overloaded: its queue is full.
        """
        rest = b""
        headers = _JSON | propagation_headers()
        try:
            async with self._client.stream(
                "POST",
                f"{ROOT}/outcomes",
                content=shard_request.model_dump_json(),
                headers=headers,
                timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S, read=self._read_timeout_s),
            ) as answer:
                if answer.status_code != HTTPStatus.OK:
                    await answer.aread()
                    self._raise_for_status(answer)
                async with aclosing(answer.aiter_raw()) as chunks:
                    async for chunk in chunks:
                        *lines, rest = (rest + chunk).split(b"\n")
                        for line in lines:
                            event = ResultEvent.model_validate_json(line)
                            if event.outcomes:
                                yield event
        except ValidationError as error:
            raise JudgeUnavailable(f"the judge at {self.url} sent an invalid line") from error
        except _BROKEN as error:
            raise self._unavailable(error) from error
        if rest:
            raise JudgeUnavailable(f"the judge at {self.url} closed the connection in the middle of a line")

    async def count_tokens(self, batch: Batch) -> int:
        """Count the tokens of the batch's longest prompt. Raises `JudgeUnavailable`."""
        try:
            answer = await self._client.post(
                f"{ROOT}/tokens", content=BATCH.dump_json(batch), headers=_JSON | propagation_headers()
            )
            if answer.status_code != HTTPStatus.OK:
                self._raise_for_status(answer)
            return TokenCount.model_validate_json(answer.content).tokens
        except (*_BROKEN, ValidationError, Overloaded) as error:
            raise self._unavailable(error) from error

    async def close(self) -> None:
        """Close every connection; requests in progress fail."""
        await self._client.aclose()

    def _raise_for_status(self, answer: httpx2.Response) -> NoReturn:
        if answer.status_code == HTTPStatus.TOO_MANY_REQUESTS:
            wait = retry_after_s(answer.headers, datetime.now(UTC))
            raise Overloaded(
                Problem.model_validate_json(answer.content).detail,
                retry_after_s=None if wait is None else math.ceil(wait),
            )
        # The body is not quoted: a proxy in between may repeat what it was sent.
        refusal, why = JudgeUnavailable, "not an answer of a judge"
        with suppress(ValidationError):
            problem = Problem.model_validate_json(answer.content)
            why = problem.detail
            if problem.type == NotReady.type:
                refusal = JudgeNotReady
        raise refusal(f"the judge at {self.url} answered HTTP {answer.status_code}: {why}")

    def _unavailable(self, error: Exception) -> JudgeUnavailable:
        not_connected = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
        return (JudgeNotReady if not_connected else JudgeUnavailable)(
            f"no answer from the judge at {self.url}: {error or type(error).__name__}"
        )
