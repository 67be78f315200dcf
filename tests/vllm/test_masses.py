"""vLLM's masses are those of the model: a plain forward pass, before any constraint."""

import math
from pathlib import Path

import pytest

from judge_server.engines.vllm.engine import VllmEngine
from judge_server.ports import Batch, LabelChoice, Option, TokenChoice
from tests.judge_server.engines.fixtures import NO, YES, asked, replies

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

SHARED = "A response says: 7 is prime, since neither 2 nor 3 divides it.\n"
BATCH = asked(
    "Does it say that 7 is prime?",
    "Does it say that 9 is prime?",
    "Begin a story.",
    shared=SHARED,
)


def prompts(engine: VllmEngine, batch: Batch) -> list[list[int]]:
    """The token ids of the batch's calls."""
    assert engine._answerer is not None
    tokens = engine._answerer.tokens
    prefix = tokens.prefix(batch.system, batch.shared)
    return [prefix + tokens.plain(call.question) + tokens.answer for call in batch.calls]


async def test_masses_equal_those_of_a_plain_forward_pass(engine: VllmEngine, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    assert engine._answerer is not None
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    spellings = [engine._answerer.tokens.spellings(option) for option in (YES, NO)]
    assert [len(ids) for ids in spellings] == [4, 4]
    said = []
    for ids, reply in zip(prompts(engine, BATCH), await replies(engine, BATCH), strict=True):
        with torch.no_grad():
            probability = torch.softmax(model(torch.tensor([ids])).logits[0, -1].float(), dim=-1)
        expected = [float(probability[of_one].sum()) for of_one in spellings]
        assert reply.masses == pytest.approx(expected, abs=0.03)  # both round to 8 bits, in a different order
        said.append(sum(expected))
    assert min(said) < 0.5, "at least one prompt must leave mass on other tokens, or a mask would not be detected"
    assert max(said) > 0.5


async def test_a_token_choice_does_not_change_the_masses_it_reads(engine: VllmEngine) -> None:
    from vllm import SamplingParams

    assert engine._answerer is not None
    spellings = [engine._answerer.tokens.spellings(option) for option in (YES, NO)]
    await replies(engine, BATCH)  # so that both use the same cached prefix
    for ids, reply in zip(prompts(engine, BATCH), await replies(engine, BATCH), strict=True):
        free = SamplingParams(
            max_tokens=1, temperature=0.0, logprob_token_ids=sorted({i for of_one in spellings for i in of_one})
        )
        output = await engine._answerer.generate(ids, free)
        found = {token: math.exp(logprob.logprob) for token, logprob in output.outputs[0].logprobs[0].items()}
        assert reply.masses == pytest.approx([sum(found[i] for i in of_one) for of_one in spellings], abs=0.01)


async def test_the_second_choice_follows_the_most_likely_label_and_the_lead(engine: VllmEngine) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    assert engine._answerer is not None
    then = LabelChoice(("1", "2", "10", "none"), ", step ")
    likely, unlikely = Option("verily", YES.spellings), Option("nay", NO.spellings)
    for token_choice in (TokenChoice((likely, unlikely), then), TokenChoice((unlikely, likely), then)):
        batch = asked("Does it say that 7 is prime?", answer=token_choice, shared=SHARED)
        (reply,) = await replies(engine, batch)
        assert reply.masses is not None
        label = token_choice.options[reply.masses.index(max(reply.masses))].label
        continued = prompts(engine, batch)[0] + [
            i for text in (label, then.lead) for i in engine._answerer.tokens.plain(text)
        ]
        held = SamplingParams(
            max_tokens=8, temperature=0.0, structured_outputs=StructuredOutputsParams(choice=list(then.labels))
        )
        assert reply.chosen == (await engine._answerer.generate(continued, held)).outputs[0].text


async def test_a_token_choice_without_single_token_spellings_has_no_mass(engine: VllmEngine) -> None:
    token_choice = TokenChoice(
        (Option("a", ("an answer of several tokens",)), Option("b", ())), LabelChoice(("1", "2"), " ")
    )
    for reply in await replies(engine, asked("Is it?", answer=token_choice)):
        assert reply.masses == (0.0, 0.0)
        assert reply.chosen is None
