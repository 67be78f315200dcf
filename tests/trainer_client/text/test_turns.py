""""""

import json
from functools import cache
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from trainer_client.steps import split_paragraphs, split_steps
from trainer_client.text.offsets import TokenOffsets
from trainer_client.text.thinking import judged_content
from trainer_client.text.turns import place_trajectory, sampled_runs, step_spans, turn_spans
from trainer_client.wire import Response

pytestmark = pytest.mark.trl

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>"]

ENDS = {"qwen2_5": "<|im_end|>", "qwen3": "<|im_end|>", "qwen3_training": "<|im_end|>", "llama3_2": "<|eot_id|>"}

DROPS_THINKING = """
{%- for message in messages %}
{%- if message.role == "assistant" %}
{{- "<|im_start|>assistant\\n" + (message.content or "").split("</think>")[-1] }}
{%- for call in message.tool_calls or [] %}{{ "<tool>" + call.function.name + "</tool>" }}{% endfor %}
{{- "<|im_end|>" }}
{%- else %}
{{- "<|im_start|>" + message.role + "\\n" + message.content + "<|im_end|>" }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}{% endif %}
"""
"""A template that hides the thinking of earlier turns from the model."""

TURNS = [
    (
        "<think>I need the table.</think>\nI look it up.",
        "search",
        {"train": "IC 207"},
        "120 km. I look it up.",
    ),
    ("", "divide", {"a": 120, "b": 1.5}, "80"),
    ("### Step 1: It is 80.\n\n### Step 2: So 80 km/h.", None, None, None),
]
"""The turns of a trajectory: text, tool, arguments, result. The first result repeats what the policy said before."""


@cache
def tokenizer(name):
    """One token per byte, and the special tokens of Qwen and Llama, with a template of TRL's or ours."""
    made = Tokenizer(models.BPE({piece: i for i, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    words = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=ENDS.get(name, "<|im_end|>"), pad_token="<|begin_of_text|>"
    )
    if name == "drops_thinking":
        words.chat_template = DROPS_THINKING
    else:
        from importlib.resources import files

        words.chat_template = (files("trl") / "chat_templates" / f"{name}.jinja").read_text()
    return words


def suffix(words, result):
    """The tokens that TRL puts between a tool call and the next turn."""
    from trl import GRPOTrainer

    trainer = SimpleNamespace(
        processing_class=words, _tokenizer=words, chat_template=None, chat_template_kwargs={}, _is_vlm=False
    )
    return GRPOTrainer._get_tool_suffix_ids(trainer, [result])


@cache
def rolled_out(name):
    """A trajectory of an agent loop: messages, token ids, their mask, and the ids of each turn."""
    words = tokenizer(name)
    messages, ids, mask, sampled = [], [], [], []
    for said, tool, arguments, result in TURNS:
        message = {"role": "assistant", "content": said}
        call = f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>" if tool else ""
        own = [*words(said + call, add_special_tokens=False)["input_ids"], words.eos_token_id]
        if tool:
            message["tool_calls"] = [{"type": "function", "function": {"name": tool, "arguments": arguments}}]
        messages.append(message)
        sampled.append((len(ids), len(ids) + len(own)))
        ids, mask = ids + own, mask + [1] * len(own)
        if tool:
            answer = {"role": "tool", "name": tool, "content": result}
            messages.append(answer)
            rendered = suffix(words, answer)
            ids, mask = ids + rendered, mask + [0] * len(rendered)
    return messages, ids, mask, sampled


TEMPLATES = ["qwen2_5", "qwen3_training", "llama3_2", "drops_thinking"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_turn_has_the_tokens_sampled_in_it(name):
    _, ids, mask, sampled = rolled_out(name)
    assert turn_spans(len(ids), mask, 3) == dict(enumerate(sampled, 1))


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("reasoning", ["strip", "keep"])
def test_steps_by_headings_stay_within_their_turn_and_out_of_results(name, reasoning):
    words = tokenizer(name)
    messages, ids, mask, sampled = rolled_out(name)
    judged = judged_content(Response.model_validate({"text": messages}), reasoning)
    alignment = place_trajectory(TokenOffsets(words), ids, mask, judged, 3)
    assert alignment is not None
    assert all(mask[token] for token in alignment.tokens)
    spans = step_spans("headings", split_steps(judged.text), alignment, None)
    decoded = {number: words.decode(ids[first:last]) for number, (first, last) in spans.items()}
    assert decoded == {1: "### Step 1: It is 80.\n\n", 2: "### Step 2: So 80 km/h."}
    assert spans[1][0] >= sampled[2][0]
    assert spans[2][1] <= sampled[2][1]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_paragraph_repeated_by_a_result_is_placed_where_the_policy_wrote_it(name):
    words = tokenizer(name)
    messages, ids, mask, _ = rolled_out(name)
    judged = judged_content(Response.model_validate({"text": messages}), "strip")
    alignment = place_trajectory(TokenOffsets(words), ids, mask, judged, 3)
    spans = step_spans("paragraphs", split_paragraphs(judged.text), alignment, None)
    first, last = spans[1]
    assert words.decode(ids[first:last]) == "I look it up."
    assert all(mask[first:last])


def test_a_mismatched_number_of_runs_gives_no_turn_spans():
    assert turn_spans(4, [1, 0, 1, 1], 3) is None
    assert turn_spans(3, None, 1) == {1: (0, 3)}
    assert step_spans("turns", [(0, 0, 9), (1, 0, 4)], None, None) is None
    assert step_spans("turns", [(0, 0, 9)], None, None) == {}


def test_padding_after_the_tokens_is_not_a_turn():
    assert turn_spans(3, [1, 0, 1, 1, 1], 2) == {1: (0, 1), 2: (2, 3)}


@given(st.lists(st.booleans()))
def test_runs_are_the_sampled_tokens_in_order(mask):
    runs = sampled_runs(map(int, mask))
    assert [t for first, last in runs for t in range(first, last)] == [t for t, one in enumerate(mask) if one]
    assert all(end < start for (_, end), (start, _) in pairwise(runs))
