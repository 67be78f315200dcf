"""Prompts as token ids: the chat template split around its two messages, and everything else tokenised as plain text.

Only the template's own pieces are tokenised with control tokens allowed. Prefix and question are tokenised apart, so
that the prefix's ids are the same whatever question follows.
"""

from collections import OrderedDict

import httpx2

from judge_server.errors import EngineStartError
from judge_server.ports import Batch, Option

_SYSTEM, _USER = "\x02system\x03", "\x02user\x03"
_REMEMBERED = 4096


class ChatTokens:
    """Tokenises for one running llama.cpp server, remembering what recurs."""

    def __init__(
        self, http: httpx2.AsyncClient, template: str, head: list[int], middle: list[int], tail: list[int]
    ) -> None:
        self._http = http
        self._head, self._middle, self._tail = head, middle, tail
        self._seen: OrderedDict[str, list[int]] = OrderedDict()
        self._prefix: tuple[tuple[str, str], list[int]] | None = None
        self.template = template

    @classmethod
    async def load(cls, http: httpx2.AsyncClient) -> "ChatTokens":
        """Read the model's chat template and tokenise its fixed pieces.

        Raises:
            EngineStartError: the template has no place for a system and a user message.
        """
        messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": _USER}]
        answer = await http.post("/apply-template", json={"messages": messages})
        template = str(answer.json().get("prompt", ""))
        head, _, rest = template.partition(_SYSTEM)
        middle, found, tail = rest.partition(_USER)
        if not found:
            raise EngineStartError(
                "the model's chat template takes no system message followed by a user message; "
                "choose a model that is tuned to follow instructions"
            )
        return cls(
            http,
            template,
            await _tokenise(http, head, control=True, start=True),
            await _tokenise(http, middle, control=True),
            await _tokenise(http, tail, control=True),
        )

    @property
    def warm_up(self) -> list[int]:
        """A short valid prompt."""
        return self._head + self._middle + self._tail

    async def prefix(self, batch: Batch) -> list[int]:
        """Everything before the question. The last batch's is remembered: its calls come one after another."""
        key = (batch.system, batch.shared)
        if self._prefix is None or self._prefix[0] != key:
            shared = await _tokenise(self._http, batch.shared)
            self._prefix = key, self._head + await self.plain(batch.system) + self._middle + shared
        return self._prefix[1]

    async def question(self, text: str) -> list[int]:
        """The question and what the template puts before the answer."""
        return await self.plain(text) + self._tail

    async def spellings(self, option: Option) -> list[int]:
        """The ids of the option's spellings that are one token for this model."""
        ids = [await self.plain(spelling) for spelling in option.spellings]
        return sorted({i[0] for i in ids if len(i) == 1})

    async def plain(self, text: str) -> list[int]:
        """Ids of a text in which nothing is a control token."""
        ids = self._seen.get(text)
        if ids is None:
            ids = self._seen[text] = await _tokenise(self._http, text)
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        else:
            self._seen.move_to_end(text)
        return ids


async def _tokenise(http: httpx2.AsyncClient, text: str, *, control: bool = False, start: bool = False) -> list[int]:
    body = {"content": text, "parse_special": control, "add_special": start}
    answer = await http.post("/tokenize", json=body)
    answer.raise_for_status()
    ids: list[int] = answer.json()["tokens"]
    return ids
