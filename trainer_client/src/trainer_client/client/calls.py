"""Build the requests of `/v1`, validated against the wire contract before anything is sent.

`Client.rewards` documents the keyword arguments. This module assigns each one to its part of the request; the wire
contract validates the values.
"""

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar
from urllib.request import getproxies, proxy_bypass

import httpx2
from pydantic import BaseModel, ValidationError

from trainer_client.client.answers import AnswerT, PreparedRequest, to_json_bytes
from trainer_client.client.keywords import RewardKeywords, VerdictKeywords
from trainer_client.client.matching import groups_problem
from trainer_client.errors import InvalidRequest
from trainer_client.wire import (
    Criterion,
    Group,
    Pair,
    RewardAnswer,
    RewardMode,
    RewardRequest,
    RubricContent,
    VerdictAnswer,
    VerdictRequest,
)
from trainer_client.wire.base import RequestModel
from trainer_client.wire.names import require_name
from trainer_client.wire.options import option_parts
from trainer_client.wire.problems import field_errors

GroupLike = Group | Mapping[str, Any]
PairLike = Pair | Mapping[str, Any]
RubricLike = str | RubricContent | Mapping[str, Any] | Sequence[Criterion | Mapping[str, Any]]
"""A reference, the rubric itself, or a list of its criteria."""

API_KEY_VARIABLE = "ADJUDGE_API_KEY"
URL_VARIABLE = "ADJUDGE_URL"

ANSWER_MARGIN_S = 15.0
"""Seconds that the client waits for an answer beyond the deadline of judging. If it is lower, answers that were judged
in time get lost on the way, and the client asks for them again."""

_CONNECT_TIMEOUT_S = 10.0
_ERRORS_SHOWN = 10


def service_url(base_url: str | None) -> str:
    """Return the service's URL: the given one, or that of the environment variable ADJUDGE_URL.

    Raises:
        ValueError: neither is set.
    """
    url = os.environ.get(URL_VARIABLE, "").strip() if base_url is None else base_url
    if base_url is None and not url:
        raise ValueError(
            f"there is no address of a service; pass base_url, such as http://judge:8000, or set {URL_VARIABLE}"
        )
    return url


def client_options(
    base_url: str, timeout_s: float, headers: Mapping[str, str] | None, api_key: str | None
) -> dict[str, Any]:
    """Return the keyword arguments of the sync or async HTTP client.

    Raises:
        ValueError: `base_url` is not an http(s) URL, `timeout_s` is not above 0, or `api_key` is malformed.
    """
    try:
        url = httpx2.URL(base_url)
    except httpx2.InvalidURL as error:
        raise ValueError(f"base_url is {base_url!r}, which is not a URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"base_url is {base_url!r}; write scheme and host, such as http://judge:8000")
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is {timeout_s!r}; use a number of seconds above 0")
    defaults = {"User-Agent": f"adjudge-client/{version('adjudge-client')}", "Accept": "application/json"}
    key = os.environ.get(API_KEY_VARIABLE, "").strip() if api_key is None else api_key
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ValueError("api_key has spaces or characters that no key has; pass the key exactly as it was shown")
    given = dict(headers or {})
    if key and "authorization" not in {name.lower() for name in given}:
        defaults["Authorization"] = f"Bearer {key}"
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
    return {"base_url": url, "headers": defaults | given, "limits": limits}


def bypasses_proxy(url: httpx2.URL) -> bool:
    """Whether a URL is reached without a proxy, by the environment's proxy settings."""
    proxies = getproxies()
    return not (url.scheme in proxies or "all" in proxies) or bool(proxy_bypass(url.netloc.decode()))


@contextmanager
def socks_support() -> Iterator[None]:
    """Create an HTTP client in this context, so that a missing package for SOCKS proxies is called by its name.

    Raises:
        ImportError: the environment names a SOCKS proxy, and its package is not installed.
    """
    try:
        yield
    except ImportError as error:
        if "socksio" not in str(error):
            raise
        raise ImportError(
            "the environment names a SOCKS proxy (ALL_PROXY, HTTP_PROXY or HTTPS_PROXY), which needs a package that is "
            "not installed; run pip install 'httpx2[socks]', or name the host in NO_PROXY"
        ) from None


def new_idempotency_header() -> dict[str, str]:
    """A new `Idempotency-Key` header, which lets the service recognise a retried request."""
    return {"Idempotency-Key": secrets.token_hex(16)}


def query(**given: object) -> dict[str, str | list[str]]:
    """Return the parameters of a query as text; those that are None are left out."""
    present = {name: value for name, value in given.items() if value is not None}
    return {name: _query_value(value) for name, value in present.items()}


def _query_value(value: object) -> str | list[str]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [*value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def send_options(request: PreparedRequest[AnswerT], timeout_s: float) -> dict[str, Any]:
    """Return the keyword arguments to send a request with, for a client with this timeout."""
    read_timeout_s, body = max(timeout_s, request.min_timeout_s), request.body
    headers = {"Content-Type": None if body is None else "application/json", "Accept": request.accept}
    return {
        "method": request.method,
        "url": request.path,
        "params": request.params,
        "content": body,
        "headers": {name: value for name, value in headers.items() if value} | dict(request.headers),
        "timeout": httpx2.Timeout(read_timeout_s, connect=min(read_timeout_s, _CONNECT_TIMEOUT_S)),
    }


def split_options(
    method: str, options: Mapping[str, Any], request: type[RequestModel], parameters: Iterable[str]
) -> dict[str, Any]:
    """Assign options to the parts of a request whose models have these fields, or to the request itself.

    Options that are None and parts without options are left out, since an older service may not know them.
    `parameters` are the other parameters of `method`, and perhaps `run`, used to suggest a name.

    Raises:
        TypeError: there is no such option.
    """
    part_of = option_parts(request)
    chosen: dict[str, Any] = {}
    for name, value in options.items():
        if name not in part_of:
            [closest] = get_close_matches(name, [*part_of, *set(parameters) - {"run"}], n=1, cutoff=0.0)
            raise TypeError(f"{method}() has no option {name!r}; did you mean {closest!r}?")
        if value is None:
            continue
        if part_of[name]:
            chosen.setdefault(part_of[name], {})[name] = value
        else:
            chosen[name] = value
    return chosen


def rewards_request(
    method: str,
    given: Mapping[str, Any],
    mode: RewardMode,
    options: RewardKeywords,
    idempotency_key: str | None = None,
) -> PreparedRequest[RewardAnswer]:
    """Build `POST /v1/rewards`; errors name `method`, the client's method. `given` are fields of the request itself.

    Raises:
        InvalidRequest: the request breaks the wire contract.
        TypeError: there is no such option.
    """
    chosen = split_options(method, options, RewardRequest, given)
    reward = {"mode": mode, **chosen.pop("reward", {})}
    request = validated(RewardRequest, {"reward": reward, **chosen, **given})
    return judging_request("/v1/rewards", request, RewardAnswer, _key_header(idempotency_key))


def verdicts_request(
    given: Mapping[str, Any], options: VerdictKeywords, idempotency_key: str | None = None
) -> PreparedRequest[VerdictAnswer]:
    """Build `POST /v1/verdicts`; arguments and errors are the same as for `rewards_request`."""
    chosen = split_options("verdicts", options, VerdictRequest, given)
    request = validated(VerdictRequest, {**chosen, **given})
    return judging_request("/v1/verdicts", request, VerdictAnswer, _key_header(idempotency_key))


GroupsAnswerT = TypeVar("GroupsAnswerT", RewardAnswer, VerdictAnswer)
MessageT = TypeVar("MessageT", bound=BaseModel)


def judging_request(
    path: str, request: RewardRequest | VerdictRequest, answer: type[GroupsAnswerT], headers: Mapping[str, str]
) -> PreparedRequest[GroupsAnswerT]:
    """Build the request that judges groups, from a complete message."""
    return PreparedRequest(
        "POST",
        path,
        answer,
        to_json_bytes(request),
        min_timeout_s=request.deadline_s + ANSWER_MARGIN_S,
        headers=headers,
        mismatch=partial(groups_problem, request),
        rewards=request if isinstance(request, RewardRequest) else None,
    )


def validated(message: type[MessageT], fields: BaseModel | Mapping[str, Any]) -> MessageT:
    """Return a message made of these fields; raise `InvalidRequest` if they break the wire contract."""
    try:
        return message.model_validate(fields)
    except ValidationError as error:
        raise invalid_request_error(error) from error


def name_in_path(name: str, what: str) -> str:
    """Return the name of `what` for a path; raise `InvalidRequest` if it cannot be one."""
    try:
        return require_name(name, what)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error


def _key_header(idempotency_key: str | None) -> dict[str, str]:
    return {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}


def invalid_request_error(error: ValidationError) -> InvalidRequest:
    """The error of a request that breaks the wire contract; its message lists the first invalid fields."""
    errors = field_errors(error.errors(include_url=False, include_input=False))
    described = "; ".join(f"{each.field}: {each.message}".removeprefix(": ") for each in errors[:_ERRORS_SHOWN])
    if len(errors) > _ERRORS_SHOWN:
        described += f"; and {len(errors) - _ERRORS_SHOWN} more"
    return InvalidRequest(f"the request is invalid and was not sent: {described}", errors=errors)
