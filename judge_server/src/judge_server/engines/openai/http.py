"""HTTP requests to a server of the OpenAI chat API: bounded, cancellable, and with every failure classified.

The API key goes into one header and into no message.
"""

import hmac
import json
import math
import os
import re
import secrets
import socket
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, NoReturn
from urllib.parse import SplitResult, parse_qsl
from urllib.request import getproxies

import aiohttp
import httpx2
from aiohttp import AddrInfoType
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_json

from judge_server.engines.openai.completions import (
    ChatCompletion,
    EndpointWords,
    embedded_error,
    parse_body,
    parse_error_body,
    read_together,
    shape_error,
)
from judge_server.ports import CallFailure
from trainer_client.client.connection import keepalive_options

MAX_BODY_BYTES = 4 * 1024 * 1024
"""The most bytes read of an answer; no verdict needs more."""

MAX_RETRY_AFTER_S = 3600.0
"""Upper limit of what Adjudge accepts as an endpoint's `Retry-After`."""

CONNECT_TIMEOUT_S = 10.0
"""Timeout to connect to an endpoint."""

_IDLE_S = 2.0
"""How long an idle connection is kept. Servers drop theirs after five seconds, so the client must be first."""

SESSION_HEADERS = ("X-Session-ID", "X-SMG-Routing-Key")
"""What routers hash to choose an engine: Ray Serve and vllm-router read the first, SGLang's router the second."""

_OVERLOADED = (HTTPStatus.TOO_MANY_REQUESTS, 529)
"""Statuses of an endpoint that has too much to do; 529 is Anthropic's."""

_ZLIB = frozenset({"gzip", "x-gzip", "deflate"})
_KEY_OPTIONS = frozenset({"key", "api_key", "apikey", "token"})
_KEY_IN_URL = "an engine URL must not hold a key, because URLs are shown and logged; set ADJUDGE_ENGINE_API_KEY instead"

_TOO_LONG = re.compile(
    r"context.?(length|size|window)|model.?len|maximum allowed length"
    r"|(prompt|input|request)[\w ]{0,200} too (long|large)|too many [\w ]{0,200}tokens",
    re.IGNORECASE,
)


_QUOTA_CODE = re.compile(
    r"insufficient.?(user.?)?(quota|balance|credits?|funds)|exceeded.?(your.?)?current.?quota|billing"
    r"|payment.?required|arrearage",
    re.IGNORECASE,
)
_QUOTA_WORDS = re.compile(
    r"insufficient.?(quota|balance|credits?|funds)|exceeded your (current|monthly) quota"
    r"|credit balance|(out of|no|not enough|run out of|more) credits?\b|budget .{0,40}exceeded|exceeded.{0,20}budget"
    r"|(quota|budget).?(exceeded|exhausted)|billing .{0,20}limit|account .{0,40}(overdue|arrears|suspended|standing)"
    r"|payment required",
    re.IGNORECASE,
)
"""How endpoints say that there is nothing left to pay with, which is another thing than too many requests a minute."""

_RATE_WORDS = re.compile(
    r"(retry|try again) (in|after) [\d.]+ ?(m?s|m|sec|min|hour)|rate.?limit|per.?(second|minute|hour|day)|requests"
    r"|resource.?exhausted",
    re.IGNORECASE,
)
_LONGEST_DURATION = 15 * 10**8
"""A Retry-After above this is no duration but a time, in seconds since 1970."""


class EndpointError(Exception):
    """A request got no usable answer.

    `status` is that of the HTTP answer, or the one that an error in an answer of status 200 names; None if there was no
    answer.
    """

    def __init__(self, failure: CallFailure, status: int | None = None) -> None:
        super().__init__(failure.detail)
        self.failure = failure
        self.status = status


class UnreadableLogprobs(EndpointError):
    """The log-probabilities of a completion cannot be read."""


def mixed_weights(answered: object, first: object) -> EndpointError:
    """Return the error for an answer that names another model than the first one did."""
    detail = (
        f"the endpoint answered as {answered!r:.80}, but as {first!r:.80} when the judge started; verdicts of "
        "different weights must not be mixed: restart the judge"
    )
    return EndpointError(CallFailure("engine", detail), HTTPStatus.OK)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A complete HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        """Whether the status is 200, the only one that answers such a request."""
        return self.status == HTTPStatus.OK

    def json(self) -> Any:
        """Return the body as JSON; None if it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class OpenAIHttp:
    """An HTTP client for one endpoint. `base_url` ends before `/chat/completions`.

    A request fails if the endpoint sends nothing for `timeout_s` seconds; None waits for ever.
    """

    def __init__(self, base_url: str, api_key: str | None, *, timeout_s: float | None) -> None:
        if api_key is not None and not re.fullmatch(r"[!-~]+", api_key):
            raise ValueError("ADJUDGE_ENGINE_API_KEY holds characters that no key has; set it to the key only")
        self.base_url = base_url.rstrip("/")
        self.root_url = self.base_url.removesuffix("/v1")
        self._key = api_key
        self._session_key = api_key.encode() if api_key else secrets.token_bytes(32)
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._process = os.getpid()
        self._inherited: aiohttp.ClientSession | None = None
        self._closed = False

    def session_of(self, *prefix: str) -> str:
        """Return the session of requests that begin with this text: a digest with a secret key.

        The key is the API key, so that all processes with the same one agree; without one, it is random.
        """
        text = "\0".join(prefix).encode("utf-8", "surrogatepass")
        return hmac.new(self._session_key, text, "sha256").hexdigest()[:32]

    async def chat(self, body: dict[str, Any], *, session: str | None = None) -> ChatCompletion:
        """Request one chat completion, with the session in `SESSION_HEADERS`. Raises `EndpointError`."""
        answer = await self._exchange("POST", f"{self.base_url}/chat/completions", encode(body), _session(session))
        content = self._content(answer)
        try:
            return ChatCompletion.model_validate(content)
        except ValidationError as error:
            if "logprobs" in error.errors()[0]["loc"]:
                detail = f"the log-probabilities cannot be read ({shape_error(error)}); check what serves the model"
                raise UnreadableLogprobs(self.make_error(detail).failure, answer.status) from error
            self._no_completion(answer, shape_error(error))

    async def chat_together(
        self, conversations: Sequence[bytes], fields: Mapping[str, Any], *, session: str | None = None
    ) -> list[ChatCompletion | None]:
        """Request a chat completion for each conversation by vLLM's batch route.

        A conversation is the JSON of its messages, and `fields` is the rest of the body. A completion that is missing
        or uncertain is None. Raises `EndpointError`.
        """
        rest = encode({**fields, "return_token_ids": True})  # nosec B105
        body = b'{"messages":[' + b",".join(conversations) + b"]," + rest[1:]
        answer = await self._exchange("POST", f"{self.base_url}/chat/completions/batch", body, _session(session))
        return read_together(self._content(answer), [len(conversation) for conversation in conversations])

    def _content(self, answer: HttpAnswer) -> Any:
        """Return the content of a completion; raises `EndpointError` for an error in it, or in its place."""
        if not answer.ok:
            self.raise_for_status(answer)
        try:
            content = parse_body(answer.body)
        except ValueError as error:
            self._no_completion(answer, str(error).partition("\n")[0])
        self._raise_embedded(answer, content)
        return content

    def _raise_embedded(self, answer: HttpAnswer, content: Any) -> None:
        if (said := embedded_error(content)) is not None:
            self._refuse(said, said.status or _implied_status(said), answer.headers)

    def _no_completion(self, answer: HttpAnswer, why: str) -> NoReturn:
        self._fail(
            f"the answer is not a chat completion ({why}); it begins {_beginning(answer.body)}; "
            "check the path of the engine URL",
            answer.status,
        )

    async def get(self, url: str) -> HttpAnswer:
        """GET a URL and return the answer, whatever its status. Raises `EndpointError` if there is none."""
        return await self._exchange("GET", url, None)

    async def post(self, url: str, body: dict[str, Any]) -> HttpAnswer:
        """POST a JSON body and return the answer, whatever its status. Raises `EndpointError` if there is none."""
        return await self._exchange("POST", url, encode(body))

    async def post_for_object(self, url: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST a JSON body and return the JSON object in the answer. Raises `EndpointError` if there is none."""
        answer = await self.post(url, body)
        if not answer.ok:
            self.raise_for_status(answer)
        body_object = answer.json()
        if not isinstance(body_object, dict):
            self._fail(f"the answer of {url} is not a JSON object", answer.status)
        self._raise_embedded(answer, body_object)
        return body_object

    def raise_for_status(self, answer: HttpAnswer) -> NoReturn:
        """Raise the `EndpointError` for an answer's status."""
        said = parse_error_body(answer.body)
        if HTTPStatus.MULTIPLE_CHOICES <= answer.status < HTTPStatus.BAD_REQUEST:
            there = answer.headers.get("Location", "").partition("?")[0] or "another address"
            self._fail(
                f"HTTP {answer.status}: the endpoint redirects to {there}, and requests with a key are not sent on; "
                "correct the engine URL",
                answer.status,
            )
        self._refuse(said, answer.status, answer.headers)

    def _refuse(self, said: EndpointWords, status: int, headers: Mapping[str, str]) -> NoReturn:
        """Raise the `EndpointError` for what an endpoint says in place of an answer."""
        detail = self._without_key(f"HTTP {status}: {said.message or 'no reason given'}")
        wait_s = retry_after_s(headers, datetime.now(UTC))
        if _is_quota(said, status, wait_s):
            raise EndpointError(
                CallFailure(
                    "engine",
                    f"the endpoint's quota is exhausted ({detail}); add credit there, or set "
                    "ADJUDGE_ENGINE_API_KEY to a key that has some",
                    math.inf,
                ),
                status,
            )
        if status == HTTPStatus.UNAUTHORIZED or (status == HTTPStatus.FORBIDDEN and not said.message):
            why = "refused the key" if self._key else "requires a key"
            self._fail(f"the endpoint {why} (HTTP {status}); set ADJUDGE_ENGINE_API_KEY to one that it accepts", status)
        if status == HTTPStatus.FORBIDDEN:
            self._fail(f"the endpoint does not allow the request ({detail}); see what the key may use", status)
        if status in _OVERLOADED or (status == HTTPStatus.SERVICE_UNAVAILABLE and wait_s is not None):
            raise EndpointError(CallFailure("overloaded", detail, wait_s), status)
        too_long = status in (400, 422) and _TOO_LONG.search(f"{said.message} {said.code}")
        if too_long or status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise EndpointError(CallFailure("truncated_input", detail), status)
        self._fail(detail, status)

    async def close(self) -> None:
        """Close every connection; requests in flight fail."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def _exchange(
        self, method: str, url: str, content: bytes | None, more_headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        headers = ({} if content is None else {"Content-Type": "application/json"}) | dict(more_headers or {})
        try:
            async with self._get_session().request(
                method, url, data=content, headers=headers, allow_redirects=False
            ) as response:
                read = bytearray()
                async for chunk in response.content.iter_any():
                    read += chunk
                    if len(read) > MAX_BODY_BYTES:
                        self._fail(f"the answer is longer than {MAX_BODY_BYTES} bytes", response.status)
                content_encoding = response.headers.get("Content-Encoding", "").strip().lower()
                whole = self._decompressed(bytes(read), response.status) if content_encoding in _ZLIB else bytes(read)
                return HttpAnswer(response.status, response.headers, whole)
        except aiohttp.SocketTimeoutError as error:
            raise EndpointError(
                CallFailure(
                    "timeout", f"the endpoint sent nothing for {self._timeout_s:g} s; see the engine's ?timeout_s="
                )
            ) from error
        except (aiohttp.ClientError, OSError, RuntimeError, ValueError) as error:
            # RuntimeError: the session was closed meanwhile.
            self._fail(f"no answer from {self.base_url}: {str(error) or type(error).__name__}", None, error)

    def _decompressed(self, body: bytes, status: int) -> bytes:
        """Return a body that the endpoint compressed unasked, bounded like any other; as it is if it cannot be read."""
        unpacking = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib, as its header says
        try:
            whole = unpacking.decompress(body, MAX_BODY_BYTES)
        except zlib.error:
            return body
        if unpacking.unconsumed_tail:
            self._fail(f"the answer is longer than {MAX_BODY_BYTES} bytes", status)
        return whole

    def _get_session(self) -> aiohttp.ClientSession:
        """Return the session, which belongs to the process and the event loop that ask first."""
        if self._closed:
            raise RuntimeError("the engine is closed")
        if self._process != os.getpid():
            self._inherited, self._session = self._session, None  # kept: closing it would disturb the parent's loop
            self._process = os.getpid()
        if self._session is None:
            connect_s = min(self._timeout_s or CONNECT_TIMEOUT_S, CONNECT_TIMEOUT_S)
            self._session = aiohttp.ClientSession(
                # A compressed answer could grow past any bound while it is read.
                headers={"Accept-Encoding": "identity"}
                | ({"Authorization": f"Bearer {self._key}"} if self._key else {}),
                timeout=aiohttp.ClientTimeout(None, sock_read=self._timeout_s, sock_connect=connect_s),
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S, socket_factory=_keepalive_socket),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=bool(getproxies()),  # this looks up the proxy in a thread for each request
            )
        return self._session

    def make_error(self, detail: str, status: int | None = None) -> EndpointError:
        """Return the error for an unusable answer; its text does not contain the key."""
        return EndpointError(CallFailure("engine", self._without_key(detail)), status)

    def _fail(self, detail: str, status: int | None, cause: Exception | None = None) -> NoReturn:
        raise self.make_error(detail, status) from cause

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[the key]") if self._key else text


def base_url_of(url: SplitResult, *, scheme: str = "openai") -> str:
    """Return the base URL of `openai+http://HOST:PORT/v1`, or of another `scheme`; the path defaults to /v1.

    Raises:
        ValueError: the URL holds a key, or names no server.
    """
    if "@" in url.netloc or _KEY_OPTIONS & {name.lower() for name, _ in parse_qsl(url.query)}:
        raise ValueError(_KEY_IN_URL)
    path = url.path.rstrip("/").removesuffix("/chat/completions")
    base_url = f"{url.scheme.removeprefix(f'{scheme}+')}://{url.netloc}{path or '/v1'}"
    try:
        reachable = bool(httpx2.URL(base_url).host)
    except httpx2.InvalidURL:
        reachable = False
    if not reachable:
        raise ValueError(f"{url.geturl()} names no server; write {scheme}+http://HOST:PORT/v1")
    return base_url


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Read how long an answer asks to wait: `retry-after-ms`, or Retry-After in seconds or as a date.

    A date is relative to the answer's Date header, or else to `now`. Returns at most `MAX_RETRY_AFTER_S`; None if the
    headers are missing or invalid.
    """
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        if (milliseconds := _duration(headers.get(name, ""))) is not None:
            return min(milliseconds / 1000, MAX_RETRY_AFTER_S)
    given = headers.get("Retry-After", "").strip()
    seconds = _duration(given.removesuffix("s"))
    if seconds is not None and seconds < _LONGEST_DURATION:
        return min(seconds, MAX_RETRY_AFTER_S)
    until = _date(given) if seconds is None else datetime.fromtimestamp(min(seconds, 2**32), UTC)
    if until is None:
        return None
    clock = _date(headers.get("Date", "")) or now
    return min(max(0.0, (until - clock).total_seconds()), MAX_RETRY_AFTER_S)


def encode(content: Any) -> bytes:
    """Return content as JSON in UTF-8; what UTF-8 cannot hold is replaced."""
    try:
        return to_json(content)
    except PydanticSerializationError:
        return json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")


def _session(session: str | None) -> dict[str, str]:
    return {} if session is None else dict.fromkeys(SESSION_HEADERS, session)


def _duration(text: str) -> float | None:
    """Return a number of at least 0 that is written in digits; None for anything else."""
    return float(text) if re.fullmatch(r"[0-9]{1,300}(\.[0-9]{1,20})?", text := text.strip()) else None


def _date(text: str) -> datetime | None:
    """Read an HTTP date in any of its three forms, or one of ISO 8601; without a time zone it is UTC."""
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            date = read(text)
        except (ValueError, TypeError, OverflowError, IndexError):
            continue
        return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return None


def _is_quota(said: EndpointWords, status: int, wait_s: float | None) -> bool:
    """Whether an endpoint says that nothing is left to pay with. Who asks to wait means a rate, in the same words."""
    if status == HTTPStatus.PAYMENT_REQUIRED or _QUOTA_CODE.search(said.code):
        return True
    words = f"{said.message} {said.code}"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or wait_s is not None or _RATE_WORDS.search(words):
        return False
    return bool(_QUOTA_WORDS.search(words))


def _implied_status(said: EndpointWords) -> int:
    """Return the HTTP status of an error in an answer of status 200 that names none."""
    if re.search(r"rate.?limit|too.?many", said.code, re.IGNORECASE):
        return HTTPStatus.TOO_MANY_REQUESTS
    if re.search(r"invalid|bad.?request|unsupported|context|unprocessable", said.code, re.IGNORECASE):
        return HTTPStatus.BAD_REQUEST
    return HTTPStatus.INTERNAL_SERVER_ERROR


def _keepalive_socket(address: AddrInfoType) -> socket.socket:
    """Create a socket with TCP keepalive, which detects a lost host (see `trainer_client.client.connection`)."""
    family, kind, protocol, *_ = address
    keepalive_socket = socket.socket(family, kind, protocol)
    for option in keepalive_options():
        keepalive_socket.setsockopt(*option)
    return keepalive_socket


def _beginning(body: bytes) -> str:
    return repr(body[:200].decode(errors="replace")) if body else "with nothing"
