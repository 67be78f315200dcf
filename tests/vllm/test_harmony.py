"""gpt-oss in vLLM: a scripted model that writes harmony's channels, asked through vLLM's own parameters."""

import math
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from judge_server.engines.vllm.tokenizer import VllmTokenizer
from judge_server.ports import Call, Reply
from tests.fixtures.model_tokenizers import model_tokenizer
from tests.judge_server.engines.fixtures import YES_NO

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

TURNS = (
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>"
    "{{ m.content }}<|end|>{% endfor %}<|start|>assistant"
)
ANALYSIS = "It is. "
LETTERS = replace(YES_NO, options=tuple([replace(one, spellings=(one.label[0].lower(),)) for one in YES_NO.options]))
"""Yes and no, as tokens of one byte."""


class HarmonyModel:
    """A model that thinks in the analysis channel, goes on to the final one unless stopped, and is sure of yes."""

    model_config = SimpleNamespace(max_model_len=1000, dtype="torch.bfloat16")

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.prompts: list[str] = []

    async def generate(self, given: Any, params: Any, name: str, **_: Any) -> AsyncIterator[Any]:
        """Write as vLLM does, which looks for stop strings in the text that it makes of the tokens."""
        self.prompts.append(self.tokenizer.decode(given["prompt_token_ids"]))
        if params.logprob_token_ids:
            yes = self.tokenizer.encode("y", add_special_tokens=False)[0]
            place = {i: SimpleNamespace(logprob=math.log(0.9 if i == yes else 0.01)) for i in params.logprob_token_ids}
            yield _output(logprobs=[place])
            return
        ids = self.tokenizer.encode(f"{ANALYSIS}<|end|><|start|>assistant<|channel|>final<|message|>yes<|return|>")
        text = self.tokenizer.decode(ids, skip_special_tokens=params.skip_special_tokens)
        for stop in params.stop:
            text = text.partition(stop)[0]
        yield _output(text=text)


def _output(text: str = "", logprobs: Any = None) -> Any:
    said = SimpleNamespace(text=text, token_ids=[1], finish_reason="stop", logprobs=logprobs)
    return SimpleNamespace(outputs=[said], num_cached_tokens=0)


@pytest.mark.parametrize(
    ("think_tokens", "analysis"), [(0, ""), (64, "<|start|>assistant<|channel|>analysis<|message|>It is.<|end|>")]
)
async def test_the_verdict_of_gpt_oss_is_read_in_its_final_channel(think_tokens: int, analysis: str) -> None:
    from judge_server.engines.vllm.calls import VllmAnswerer

    tokenizer = model_tokenizer(TURNS)
    model = HarmonyModel(tokenizer)
    tokens = VllmTokenizer(tokenizer)
    answerer: Any = VllmAnswerer(model, tokens)  # type: ignore[arg-type]
    call = Call("Is it?", LETTERS, think_tokens=think_tokens)
    reply = await answerer.reply(tokens.prefix("Judge.", "A text. "), call)
    assert isinstance(reply, Reply)
    assert reply.masses == pytest.approx((0.9, 0.01))
    assert model.prompts[-1].endswith(f"Is it?<|end|>{analysis}<|start|>assistant<|channel|>final<|message|>")


async def test_a_lead_is_part_of_the_prompt_control_tokens_included() -> None:
    from judge_server.engines.vllm.calls import VllmAnswerer

    tokenizer = model_tokenizer(TURNS)
    model = HarmonyModel(tokenizer)
    tokens = VllmTokenizer(tokenizer)
    answerer: Any = VllmAnswerer(model, tokens)  # type: ignore[arg-type]
    prefix, lead = tokens.prefix("Judge.", "A text. "), "<|constrain|>{"
    reply = await answerer.reply(prefix, Call("Is it?", replace(LETTERS, lead=lead)))
    assert reply.masses == pytest.approx((0.9, 0.01))
    assert model.prompts[-1].endswith(f"<|channel|>final<|message|>{lead}")
    needed = [answerer.tokens_needed(prefix, Call("Is it?", one)) for one in (LETTERS, replace(LETTERS, lead=lead))]
    assert needed[1] - needed[0] == 2
