"""One judge process, reached over HTTP. Every way in which it can fail is told apart here, and nowhere else."""

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
"""How many heartbeats a judge may leave out until the connection counts as lost."""

ROOT = "/internal/v1"
BATCH = TypeAdapter(Batch)
_JSON = {"Content-Type": "application/json"}

_BROKEN = (httpx2.HTTPError, OSError, RuntimeError, AttributeError)
"""What comes of a connection that breaks: of one reset as it is made, httpx2 asks uvloop for a socket that is gone."""


class JudgeUnavailable(Exception):
    """A judge that did not answer, or not as a judge does; the message says how."""


class JudgeNotReady(JudgeUnavailable):
    """A judge that was given nothing: no connection could be made to it, or it said that it is not ready."""


class ProtocolMismatch(JudgeUnavailable):
    """A judge of another protocol: of another version, until a rolling upgrade has come to it or to this api."""

    def __init__(self, url: str, protocol: object) -> None:
        super().__init__(
            f"the judge at {url} speaks protocol {protocol} and this api {PROTOCOL_VERSION} (Adjudge {__version__}); "
            "it is left alone until one version runs on both sides"
        )
        self.protocol = protocol


def identity_digest(identity: EngineIdentity) -> str:
    """Equal for judges whose verdicts are the same measurement: all but what they can take at a time."""
    parts = asdict(identity)
    del parts["concurrent_batches"]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class JudgeClient:
    """A judge process at `url`; `token` is what it wants to be shown, if anything."""

    def __init__(self, url: str, token: str | None, *, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        self._client = httpx2.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),  # the health watch has its own
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0),
            transport=transport,
        )
        self._read_timeout_s: float | None = None

    async def handshake(self) -> Handshake:
        """Who it is.

        Raises:
            EngineStartError: it will never do, since it refuses the token.
            OtherProtocol: it is of another version.
            JudgeGone: it does not answer, or is no judge.
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
            found = Handshake.model_validate_json(answer.content)
        except (ValidationError, ValueError, AttributeError) as error:
            raise JudgeUnavailable(f"what answers at {self.url} is no judge: {answer.text[:80]!r}") from error
        self._read_timeout_s = HEARTBEATS_MISSED * found.heartbeat_s or None
        return found

    async def ask(self, shard_request: ShardRequest) -> AsyncGenerator[ResultEvent, None]:
        """Have calls answered: outcomes, line by line. Closing the generator drops what is not answered yet.

        Raises:
            JudgeGone: it went away, is silent though it promised heartbeats, or is not the judge that was asked for.
            Overloaded: its queue has no room.
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
            raise JudgeUnavailable(f"the judge at {self.url} sent a line that is no outcome") from error
        except _BROKEN as error:
            raise self._unavailable(error) from error
        if rest:
            raise JudgeUnavailable(f"the judge at {self.url} broke off in the middle of a line")

    async def count_tokens(self, batch: Batch) -> int:
        """How many tokens the batch's longest prompt takes. Raises `JudgeUnavailable`."""
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
        """Close every connection; what is being asked fails."""
        await self._client.aclose()

    def _raise_for_status(self, answer: httpx2.Response) -> NoReturn:
        if answer.status_code == HTTPStatus.TOO_MANY_REQUESTS:
            wait = retry_after_s(answer.headers, datetime.now(UTC))
            raise Overloaded(
                Problem.model_validate_json(answer.content).detail,
                retry_after_s=None if wait is None else math.ceil(wait),
            )
        refusal, why = (
            JudgeUnavailable,
            "and not as a judge does",
        )  # whatever stands between may repeat what it was sent
        with suppress(ValidationError):
            problem = Problem.model_validate_json(answer.content)
            why = problem.detail
            if problem.type == NotReady.type:
                refusal = JudgeNotReady
        raise refusal(f"the judge at {self.url} answered HTTP {answer.status_code}: {why}")

    def _unavailable(self, error: Exception) -> JudgeUnavailable:
        away = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
        return (JudgeNotReady if away else JudgeUnavailable)(
            f"no answer from the judge at {self.url}: {error or type(error).__name__}"
        )
