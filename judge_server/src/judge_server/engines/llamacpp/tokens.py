"""Prompts as token ids for llama.cpp: the chat template split around its messages, and everything else as plain text.

Only the template's own pieces are tokenised with control tokens allowed. Prefix and question are tokenised separately,
so that the ids of the prefix are the same for every question.
"""

from dataclasses import dataclass

import httpx2

from judge_server.engines.common import split_at_marks
from judge_server.errors import EngineStartError, EngineUnavailable
from judge_server.ports import Batch, Option
from trainer_client.byte_cache import ByteCache

_SYSTEM, _USER = "\x02system\x03", "\x02user\x03"
_REASONS, _ASK = "\x02reasons\x03", "\x02ask\x03"
_REMEMBERED_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class TemplateTokens:
    """The fixed pieces of a chat template.

    Attributes:
        head: before the system message.
        middle: between the system and the user message.
        tail: between the user message and the assistant's.
        again: between the assistant's message and a second user message; None if the template does not allow one.
        tail_again: after the second user message.
        thinking, thought: the start and the end of a thinking block.
    """

    head: list[int]
    middle: list[int]
    tail: list[int]
    again: list[int] | None
    tail_again: list[int]
    thinking: list[int]
    thought: list[int]


class LlamaCppTokenizer:
    """Tokenises with a running llama.cpp server, and caches texts that recur."""

    def __init__(self, http: httpx2.AsyncClient, template: str, pieces: TemplateTokens) -> None:
        self._http = http
        self._seen: ByteCache[str, list[int]] = ByteCache(_REMEMBERED_BYTES)
        self._prefix: tuple[tuple[str, str], list[int]] | None = None
        self.template = template
        self.pieces = pieces

    @classmethod
    async def load(cls, http: httpx2.AsyncClient) -> "LlamaCppTokenizer":
        """Read the model's chat template and tokenise its fixed pieces.

        Raises:
            EngineStartError: the template does not accept a system and a user message.
        """
        template = await _rendered(http, {"system": _SYSTEM}, {"user": _USER})
        one_turn = split_at_marks(template, _SYSTEM, _USER)
        if one_turn is None:
            raise EngineStartError(
                "the model's chat template does not accept a system message followed by a user message; "
                "choose an instruction-tuned model"
            )
        more = {"assistant": _REASONS}, {"user": _ASK}
        two_turns = await _rendered(http, {"system": _SYSTEM}, {"user": _USER}, *more)
        second = split_at_marks(two_turns, _SYSTEM, _USER, _REASONS, _ASK)
        head, middle, tail = one_turn
        *_, again, tail_again = second or ("", "")
        pieces = TemplateTokens(
            head=await _tokenise(http, head, control=True, start=True),
            middle=await _tokenise(http, middle, control=True),
            tail=await _tokenise(http, tail, control=True),
            again=await _tokenise(http, again, control=True) if second else None,
            tail_again=await _tokenise(http, tail_again, control=True),
            thinking=await _tokenise(http, "<think>\n", control=True),
            thought=await _tokenise(http, "\n</think>\n\n", control=True),
        )
        return cls(http, template if second is None else f"{template}\0{two_turns}", pieces)

    @property
    def warm_up(self) -> list[int]:
        """A short valid prompt."""
        return self.pieces.head + self.pieces.middle + self.pieces.tail

    async def prefix(self, batch: Batch) -> list[int]:
        """Return everything before the question. It is cached for the last batch, whose calls come one by one."""
        key = (batch.system, batch.shared)
        if self._prefix is None or self._prefix[0] != key:
            shared = await _tokenise(self._http, batch.shared)
            self._prefix = key, self.pieces.head + await self.plain(batch.system) + self.pieces.middle + shared
        return self._prefix[1]

    async def question(self, text: str) -> list[int]:
        """Return the question and what the template puts before the answer."""
        return await self.plain(text) + self.pieces.tail

    async def second_turn(self, ask: str) -> list[int]:
        """Return the end of the assistant's first message, and the user's `ask`.

        Raises `EngineUnavailable` if the template does not allow a second turn.
        """
        if self.pieces.again is None:
            raise EngineUnavailable(
                "the model's chat template allows no second turn, so it cannot give a rationale first"
            )
        return self.pieces.again + await self.plain(ask) + self.pieces.tail_again

    async def spellings(self, option: Option) -> list[int]:
        """Return the ids of the option's spellings that are a single token for this model."""
        ids = [await self.plain(spelling) for spelling in option.spellings]
        return sorted({i[0] for i in ids if len(i) == 1})

    async def plain(self, text: str) -> list[int]:
        """Return the ids of a text, none of which is a control token."""
        ids = self._seen.get(text)
        if ids is None:
            ids = await self.written(text)
            self._seen.put(text, ids)
        return ids

    async def written(self, text: str) -> list[int]:
        """Like `plain`, but not cached, for a text that will not recur."""
        return await _tokenise(self._http, text)


async def _rendered(http: httpx2.AsyncClient, *messages: dict[str, str]) -> str:
    """Render messages with the model's chat template; empty if the template refuses them."""
    body = [{"role": role, "content": content} for message in messages for role, content in message.items()]
    answer = await http.post("/apply-template", json={"messages": body})
    return str(answer.json().get("prompt", ""))


async def _tokenise(http: httpx2.AsyncClient, text: str, *, control: bool = False, start: bool = False) -> list[int]:
    body = {"content": text, "parse_special": control, "add_special": start}
    answer = await http.post("/tokenize", json=body)
    answer.raise_for_status()
    ids: list[int] = answer.json()["tokens"]
    return ids
