"""Token ids of prompts for vLLM: a model's chat template is split around the messages, and the rest is plain text."""

import hashlib
import json
from pathlib import Path
from typing import Any

from judge_server.engines.common import split_at_marks, thinking_marks
from judge_server.engines.vllm.loading import VLLM_NOT_INSTALLED
from judge_server.errors import EngineStartError
from judge_server.ports import Option
from rubric_store.byte_cache import ByteCache

_SYSTEM, _USER, _ANSWER, _AGAIN = "\x02system\x03", "\x02user\x03", "\x02answer\x03", "\x02again\x03"
_REMEMBERED_BYTES = 256 * 2**20


class VllmTokenizer:
    """Tokenises for one model. `tokenizer` is a tokenizer of transformers, with a chat template.

    Attributes:
        answer: the ids between a user message and the answer, with thinking skipped.
        think: the ids between a user message and the start of the model's thinking.
        thought: the ids that end the thinking.
        thought_end: what the model writes to end its thinking.
        ask: the ids between an answer and the user's next message.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._plain = _without_control_tokens(tokenizer)
        template = json.dumps(tokenizer.chat_template)
        marks = thinking_marks(template)
        self.template_digest = hashlib.sha256((template + marks.answer).encode()).hexdigest()
        self._prefixes: ByteCache[tuple[str, str], list[int]] = ByteCache(_REMEMBERED_BYTES)

        self._tokenizer = tokenizer
        first = [("system", _SYSTEM), ("user", _USER)]
        head, middle, answer = _split(_rendered(tokenizer, first, think=False), _SYSTEM, _USER)
        think = _split(_rendered(tokenizer, first, think=True), _USER)[-1]
        second = [*first, ("assistant", _ANSWER), ("user", _AGAIN)]
        ask = _split(_rendered(tokenizer, second, think=False), _ANSWER, _AGAIN)[1]
        answer += marks.closing if answer.rstrip().endswith(marks.opening.rstrip()) else marks.answer
        self._head, self._middle = self.control(head), self.control(middle)
        self.answer, self.think, self.ask = self.control(answer), self.control(marks.opened(think)), self.control(ask)
        self.thought, self.thought_end = self.control(marks.closing), marks.end

    @classmethod
    def load(cls, folder: Path) -> "VllmTokenizer":
        """Read the tokenizer of a model's folder.

        Raises:
            EngineStartError: its chat template does not accept a system and a user message, or it cannot keep text
                and control tokens apart.
        """
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise EngineStartError(VLLM_NOT_INSTALLED) from error
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise EngineStartError(
                f"the tokenizer in {folder} cannot be read: {error}. Fetch the model again"
            ) from error
        return cls(tokenizer)

    def prefix(self, system: str, shared: str) -> list[int]:
        """Return everything before the question, from the cache if possible."""
        return self._prefixes.get_or_create((system, shared), lambda: self._prefix(system, shared))

    def _prefix(self, system: str, shared: str) -> list[int]:
        return self._head + self.plain(system) + self._middle + self.plain(shared)

    def control(self, text: str) -> list[int]:
        """Return the ids of a text of the service's own, control tokens included."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def plain(self, text: str) -> list[int]:
        """Return the ids of a text, none of which is a control token."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def spellings(self, option: Option) -> list[int]:
        """Return the ids of the option's spellings that are a single token for this model."""
        ids = [self.plain(spelling) for spelling in option.spellings]
        return sorted({i[0] for i in ids if len(i) == 1})


def _without_control_tokens(tokenizer: Any) -> Any:
    """Return the tokenizer without its added tokens, except runs of white space, which are text."""
    from tokenizers import Tokenizer

    definition = json.loads(tokenizer.backend_tokenizer.to_str())
    control = [token for token in definition["added_tokens"] if not token["content"].isspace()]
    definition["added_tokens"] = [token for token in definition["added_tokens"] if token["content"].isspace()]
    plain = Tokenizer.from_str(json.dumps(definition))
    ids = plain.encode(" ".join(token["content"] for token in control), add_special_tokens=False).ids
    if not {token["id"] for token in control}.isdisjoint(ids):
        raise EngineStartError(
            "this model's tokenizer cannot keep text and control tokens apart, so a response could impersonate the "
            "service; choose another model"
        )
    return plain


def _rendered(tokenizer: Any, messages: list[tuple[str, str]], *, think: bool) -> str:
    from jinja2 import TemplateError

    turns = [{"role": role, "content": content} for role, content in messages]
    try:
        text: str = tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True, enable_thinking=think
        )
    except (TemplateError, ValueError) as error:
        raise EngineStartError(f"{_UNFIT} ({error})") from error
    return text


def _split(text: str, *marks: str) -> list[str]:
    pieces = split_at_marks(text, *marks)
    if pieces is None:
        raise EngineStartError(_UNFIT)
    return pieces


_UNFIT = (
    "the model has no chat template that accepts a system message and then a user message; "
    "choose an instruction-tuned model"
)
