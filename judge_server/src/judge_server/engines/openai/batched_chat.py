"""Chat requests sent together: one HTTP request for the conversations that a batch's calls begin at the same time.

vLLM takes a list of conversations at `/chat/completions/batch`, and answers with one choice for each, whose `index` is
its place in the list. All other fields are the same for every conversation, so requests that differ in one of them go
apart. Answers are matched by index only. A conversation without a certain answer is asked alone, and so is every one
if the request is refused: what a call's answer is never depends on what it was sent with.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from judge_server.engines.openai.completions import ChatCompletion
from judge_server.engines.openai.http import EndpointError, OpenAIHttp, encode
from judge_server.engines.openai.probe import REFUSALS

log = logging.getLogger("adjudge")

MAX_CONVERSATIONS = 32
MAX_BATCH_BYTES = 1_000_000
"""The most bytes of the conversations sent together: nginx takes a body of 1 MiB unless told otherwise."""

MAX_BATCHED_TOKENS = 64
"""The longest answers that are asked for together. An answer comes with the longest of its batch, and is lost with it
if the caller leaves before; for longer answers, a request costs little beside what the model writes."""

_GONE = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED})
"""Statuses of an endpoint without this route."""

_ASK_ALONE = REFUSALS | {HTTPStatus.OK, HTTPStatus.REQUEST_ENTITY_TOO_LARGE}
"""Statuses of a request that may do for each conversation alone; 200 is that of an answer that cannot be read."""


@dataclass(slots=True)
class BatchLimits:
    """What an endpoint takes as one request.

    Attributes:
        offered: whether it takes lists of conversations at all.
        most_bytes: the most bytes of the conversations.
    """

    offered: bool = True
    most_bytes: int = MAX_BATCH_BYTES


@dataclass(slots=True, eq=False)
class _Gathered:
    """Requests that go together: their common fields, the JSON of each conversation, and where its answer goes."""

    fields: dict[str, Any]
    conversations: list[bytes] = field(default_factory=list)
    answers: list[asyncio.Future[ChatCompletion | EndpointError | None]] = field(default_factory=list)
    size: int = 0
    was_refused: bool = False
    answered_alone: int = 0


class BatchedChat:
    """Sends the chat requests of one batch of calls, together where they begin in the same event loop iteration.

    All carry `session`, and the `fields` in their bodies. What the endpoint refuses changes `limits`, which the batches
    of an endpoint share.
    """

    def __init__(
        self, http: OpenAIHttp, session: str, limits: BatchLimits, fields: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self._http = http
        self._session = session
        self._limits = limits
        self._fields = fields
        self._open: list[_Gathered] = []

    async def chat(self, body: dict[str, Any], *, limit: int) -> ChatCompletion:
        """Request one chat completion of at most `limit` tokens. Raises `EndpointError`."""
        body = {**body, **self._fields}
        if not self._limits.offered or limit > MAX_BATCHED_TOKENS:
            return await self._http.chat(body, session=self._session)
        gathered, place = self._join(body)
        if place == 0:
            await self._send(gathered)
        answer = await gathered.answers[place]
        if isinstance(answer, EndpointError):
            raise EndpointError(answer.failure, answer.status)
        if answer is None:
            answer = await self._http.chat(body, session=self._session)
            self._record_answer_alone(gathered)
        return answer

    def _join(self, body: dict[str, Any]) -> tuple[_Gathered, int]:
        """Add a request to those that differ only in their conversation; return them, and its place."""
        fields = body.copy()
        conversation = encode(fields.pop("messages"))
        found = next((gathered for gathered in self._open if gathered.fields == fields), None)
        if found is not None and found.size + len(conversation) > self._limits.most_bytes:
            self._open.remove(found)
            found = None
        if found is None:
            found = _Gathered(fields)
            self._open.append(found)
        found.conversations.append(conversation)
        found.answers.append(asyncio.get_running_loop().create_future())
        found.size += len(conversation)
        if len(found.conversations) == MAX_CONVERSATIONS:
            self._open.remove(found)
        return found, len(found.answers) - 1

    async def _send(self, gathered: _Gathered) -> None:
        """Send what has been gathered when this event loop iteration ends, and hand out the answers.

        The first of the requests does this for all. If it is cancelled, the others are asked alone.
        """
        try:
            await asyncio.sleep(0)
            if gathered in self._open:
                self._open.remove(gathered)
            for answer, future in zip(await self._ask(gathered), gathered.answers, strict=True):
                _resolve(future, answer)
        except EndpointError as error:
            for future in gathered.answers:
                _resolve(future, error)
        finally:
            for future in gathered.answers:
                _resolve(future, None)

    async def _ask(self, gathered: _Gathered) -> list[ChatCompletion | None]:
        alone: list[ChatCompletion | None] = [None] * len(gathered.answers)
        if len(alone) == 1 or not self._limits.offered:
            return alone
        try:
            return await self._http.chat_together(gathered.conversations, gathered.fields, session=self._session)
        except EndpointError as error:
            if error.status not in _ASK_ALONE and error.failure.kind != "timeout":
                raise
            if error.status in _GONE:
                self._turn_off(f"HTTP {error.status}")
            elif error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                self._limits.most_bytes = min(self._limits.most_bytes, gathered.size // 2)
            gathered.was_refused = error.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
            return alone

    def _record_answer_alone(self, gathered: _Gathered) -> None:
        gathered.answered_alone += 1
        if gathered.was_refused and gathered.answered_alone == len(gathered.answers):
            self._turn_off("it refuses together what it takes one by one")

    def _turn_off(self, why: str) -> None:
        if self._limits.offered:
            self._limits.offered = False
            log.warning(
                "%s takes no lists of conversations any more (%s); each call is a request of its own until the judge "
                "restarts",
                self._http.base_url,
                why,
            )


def _resolve(
    future: asyncio.Future[ChatCompletion | EndpointError | None], answer: ChatCompletion | EndpointError | None
) -> None:
    if not future.done():
        future.set_result(answer)
