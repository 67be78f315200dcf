"""Thinking and answer, told apart by exact tags, and the part that is judged."""

import re
from dataclasses import astuple
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from judge_server.judging.prompts.fencing import LONGEST_TOKEN, neutralise
from trainer_client.text.pieces import PIECE, find_in_pieces
from trainer_client.text.thinking import (
    THINK_TAGS,
    ReasoningSplit,
    find_answer,
    judged_content,
    opened_by,
    response_text,
    split_reasoning,
    split_thinking,
)
from trainer_client.wire.groups import Message, Response
from trainer_client.wire.judging import OpeningTag

QWEN = "<think>\n2 + 2 is 4.\n</think>\n\nThe answer is \\boxed{4}."

QUOTES = ["``", '""', "''", "“”", "‘’", "«»"]

OPENINGS = list(dict(THINK_TAGS))

texts = st.lists(
    st.one_of(
        st.sampled_from(sorted({tag for pair in THINK_TAGS for tag in pair})),
        st.sampled_from(["<|end|><|start|>assistant", "\n", " ", "`", '"', "“", "”", "<", "</", "think>", "👍"]),
        st.text(max_size=4),
    )
).map("".join)


def answer(text: str) -> str:
    return text[split_thinking(text).answer_start :]


@pytest.mark.parametrize(("opening", "closing"), THINK_TAGS)
def test_text_between_the_tags_is_thinking_and_the_rest_is_the_answer(opening: str, closing: str) -> None:
    split = split_thinking(f"{opening}\nHm, 4.\n{closing}\n\nIt is 4.\n")
    assert (split.thinking, answer(f"{opening}\nHm, 4.\n{closing}\n\nIt is 4.\n")) == ("Hm, 4.", "It is 4.\n")


@pytest.mark.parametrize(("opening", "closing"), THINK_TAGS)
def test_a_block_opened_by_the_chat_template_begins_at_the_start_of_the_text(opening: Any, closing: str) -> None:
    start = 6 + len(closing)
    assert astuple(split_thinking(f"Hm, 4.{closing}It is 4.", opening)) == ("Hm, 4.", start, 0, start)


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("text", ["Hm, 4. Or is", "The answer is 4.", "Hm, `</think>` ends it.", ""])
def test_a_response_that_never_closes_the_templates_block_is_all_thinking(opening: Any, text: str) -> None:
    split = split_thinking(text, opening)
    assert (split.thinking, split.answer_start) == (text, len(text))
    assert judged_content(Response(text=text), "strip", opening).text == ""
    assert judged_content(Response(text=text), "only", opening).text == text


@pytest.mark.parametrize("opening", OPENINGS)
def test_a_block_that_template_and_response_both_open_is_one_block(opening: Any) -> None:
    text = f"\n{opening}Hm.{dict(THINK_TAGS)[opening]}4"
    split = split_thinking(text, opening)
    assert (split.thinking, split.said_from) == ("Hm.", len(text) - 1)


@pytest.mark.parametrize(("opening", "closing"), THINK_TAGS)
def test_a_closing_tag_that_nothing_opened_is_text(opening: str, closing: str) -> None:
    text = f"Hm, 4.{closing}It is 4."
    assert astuple(split_thinking(text, "none")) == ("", 0, 0, 0)
    if opening != "<think>":
        assert astuple(split_thinking(text)) == ("", 0, 0, 0)
        assert judged_content(Response(text=f"<think>a{closing}b"), "strip").text == ""


def test_an_unopened_think_tag_may_belong_to_the_prompt_but_what_stands_before_it_was_said() -> None:
    judged = judged_content(Response(text="Hm, 5.</think>It is 4."), "strip")
    assert (judged.text, judged.hidden, judged.said) == ("It is 4.", "Hm, 5.</think>", ("Hm, 5.</think>It is 4.",))
    assert judged.characters_left_out == 14


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("<think>a</think> b", ""),
        ("\n<think>a</think> b <think>c</think> d", "b <think>c</think> "),
        ("<think>a</think> b </think> c", "b </think> "),
        ("a <think>b</think> c", "a <think>b</think> "),
        ("a <think>b", "a <think>b"),
        ("<think>a", "<think>a"),
        ("plain", ""),
    ],
)
def test_only_the_closed_block_at_the_beginning_is_thinking_for_certain(text: str, hidden: str) -> None:
    judged = judged_content(Response(text=text), "strip")
    assert (judged.hidden, "".join(judged.said)) == (hidden, hidden + judged.text if hidden else "")


@pytest.mark.parametrize(("text", "opens"), [("<think>a", None), ("a", "<think>"), ("a <think> b", "<think>")])
def test_thinking_that_a_limit_cut_off_hides_nothing(text: str, opens: Any) -> None:
    assert judged_content(Response(text=text, stopped=False), "strip", opens).hidden == ""
    assert judged_content(Response(text=text, stopped=True), "strip", opens).hidden == text


@pytest.mark.parametrize(
    ("prompt", "given", "opens"),
    [
        ("Q", None, None),
        ("Q", "<think>", "<think>"),
        ("<|user|>Q<|assistant|><think>\n", None, "<think>"),
        ("Q [THINK] ", "<think>", "[THINK]"),
        ("Q<think>\n\n</think>\n\n", "<think>", "none"),
        ("Does <think> open it?", None, None),
        ([Message(role="user", content="Q <think>")], None, None),
        ([Message(role="user", content="Q"), Message(role="assistant", content="<think>\n")], None, "<think>"),
        ([], None, None),
    ],
)
def test_the_end_of_the_prompt_tells_which_block_it_opens(prompt: Any, given: Any, opens: str | None) -> None:
    assert opened_by(tuple(prompt) if isinstance(prompt, list) else prompt, given) == opens


def test_the_options_tags_are_those_that_are_known() -> None:
    assert set(get_args(OpeningTag)) == set(OPENINGS)


def test_every_message_begins_with_the_templates_block_unless_its_thinking_was_taken_out() -> None:
    turns = [
        Message(role="assistant", content="Hm.</think>One"),
        Message(role="assistant", content="Two", reasoning_content="Hm."),
        Message(role="assistant", content="Three", tool_calls=({"function": {"name": "f"}},)),
        Message(role="assistant", content="Four"),
    ]
    judged = judged_content(Response(text=tuple(turns), stopped=False), "strip", "<think>")
    assert judged.text == "One\n\nTwo\n\nThree"
    assert judged.characters_left_out == len("Hm.</think>Hm.Four")


@pytest.mark.parametrize("opening", [opening for opening, _ in THINK_TAGS])
def test_an_unclosed_block_leaves_no_answer(opening: str) -> None:
    text = f"{opening} Hm, 4. Or is"
    split = split_thinking(text)
    assert (split.thinking, split.answer_start) == ("Hm, 4. Or is", len(text))


@pytest.mark.parametrize(
    ("text", "thinking", "answer_"),
    [
        ("\n Let me think: 4.", "", "\n Let me think: 4."),
        ("<think>a</think>It is 3.<think>b</think>It is 4.", "a</think>It is 3.<think>b", "It is 4."),
        ("<think>a <thinking>b</thinking> c</think> d", "a <thinking>b</thinking> c", "d"),
        ("<think>a</think> It is 4. <think>Wait", "a</think> It is 4. <think>Wait", ""),
        ("Sure! <think>\nHm.\n</think> 4", "Hm.", "4"),
        ("<think>\n\n</think>\n\n4", "", "4"),
        ("<think>\n```python\nprint(4)\n</think>\nIt is 4.", "```python\nprint(4)", "It is 4."),
        ("<think>call `f`</think>4", "call `f`", "4"),
        ('<think>so "4"</think>4', 'so "4"', "4"),
        ("<think>x</think>`4`", "x", "`4`"),
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It is 4.",
            "Hm.",
            "It is 4.",
        ),
    ],
)
def test_the_answer_follows_the_last_closing_tag(text: str, thinking: str, answer_: str) -> None:
    assert (split_thinking(text).thinking, answer(text)) == (thinking, answer_)


@pytest.mark.parametrize("quotes", QUOTES)
def test_a_quoted_tag_is_ordinary_text(quotes: str) -> None:
    spoken = f"Write {quotes[0]}<think>{quotes[1]}, later {quotes[0]}</think>{quotes[1]}."
    assert split_thinking(spoken).answer_start == 0
    assert answer(f"<think>Tags?</think>{spoken}") == spoken


@pytest.mark.parametrize("text", ["<Think>a</Think>b", "< think>a</ think>b", "[think]a[/think]b", "</thinks>b"])
def test_text_that_only_resembles_a_tag_is_ignored(text: str) -> None:
    assert split_thinking(text).answer_start == 0


@pytest.mark.parametrize(
    ("part", "text", "offset"),
    [("strip", "The answer is \\boxed{4}.", 30), ("keep", QWEN, 0), ("only", "2 + 2 is 4.", 8)],
)
def test_the_requested_part_is_judged_and_its_offset_returned(part, text: str, offset: int) -> None:
    judged = judged_content(Response(text=QWEN), part)
    assert (judged.text, judged.offset, judged.messages) == (text, offset, None)


@given(texts, st.sampled_from(["strip", "keep", "only"]))
@example("a</think>`</think>`", "strip")
@example("<think>", "only")
def test_the_judged_part_is_in_the_text_at_its_offset(text: str, part) -> None:
    judged = judged_content(Response(text=text), part)
    assert text[judged.offset : judged.offset + len(judged.text)] == judged.text


@given(texts)
def test_thinking_and_answer_never_overlap_and_exclude_whitespace_around_tags(text: str) -> None:
    split = split_thinking(text)
    end = split.thinking_start + len(split.thinking)
    assert end <= split.answer_start <= len(text) or not split.thinking
    assert split.thinking == split.thinking.strip()
    assert split.answer_start == 0 or not answer(text)[:1].isspace()


@given(texts, st.sampled_from([*OPENINGS, "none", None]))
def test_an_answer_contains_no_tag_of_the_family_in_force(text: str, opens: Any) -> None:
    split = split_thinking(text, opens)
    if split.answer_start:
        said = text[split.answer_start :]
        families = [opening for opening in OPENINGS if split_thinking(said, opening).answer_start != len(said)]
        assert not families or opens not in families


WEATHER = (
    Message(
        role="assistant",
        content="Let me look.",
        reasoning_content="Two cities; ask for both.",
        tool_calls=[{"id": "1", "function": {"name": "weather", "arguments": {"city": "Paris"}}}],
    ),
    Message(role="tool", tool_call_id="1", content="<think>17 degrees</think>, clear"),
    Message(role="assistant", content="<think>17 it is.</think>\nParis has 17 degrees."),
)


def test_stripped_messages_keep_calls_and_results_and_lose_their_thinking() -> None:
    material = judged_content(Response(text=WEATHER), "strip")
    look, result, last = material.messages or ()
    assert (look.reasoning_content, look.content) == (None, "Let me look.")
    assert look.tool_calls == WEATHER[0].tool_calls
    assert result == WEATHER[1]
    assert last.content == "Paris has 17 degrees."
    assert (material.text, material.offset) == ("Let me look.\n\nParis has 17 degrees.", 0)


def test_kept_messages_are_unchanged_and_their_text_includes_the_thinking() -> None:
    material = judged_content(Response(text=WEATHER), "keep")
    assert material.messages == WEATHER
    assert material.text == (
        "Two cities; ask for both.\n\nLet me look.\n\n<think>17 it is.</think>\nParis has 17 degrees."
    )
    assert material.text == response_text(Response(text=WEATHER))


def test_thinking_only_messages_contain_nothing_else() -> None:
    material = judged_content(Response(text=WEATHER), "only")
    assert material.messages == (
        Message(role="assistant", reasoning_content="Two cities; ask for both."),
        Message(role="assistant", reasoning_content="17 it is."),
    )
    assert material.text == "Two cities; ask for both.\n\n17 it is."


def test_thinking_in_both_fields_of_a_message_is_joined() -> None:
    both = Message(role="assistant", reasoning_content="a", content="<think>b</think>c")
    assert judged_content(Response(text=(both,)), "only").text == "a\n\nb"


def test_messages_with_tool_calls_only_have_an_empty_text() -> None:
    call = Message(role="assistant", tool_calls=[{"function": {"name": "f"}}])
    for part in ("strip", "keep"):
        material = judged_content(Response(text=(call,)), part)
        assert (material.text, material.messages) == ("", (call,))


def test_the_text_of_a_plain_response_is_unchanged() -> None:
    assert response_text(Response(text=QWEN)) == QWEN


PIECES = [
    "<think>",
    "</think>",
    "Final answer: 3",
    "### Final Answer\n",
    "\\boxed{3}",
    "\\boxed{}",
    "\n",
    " so ",
    "x",
]

TEXTS = st.lists(st.sampled_from(PIECES), max_size=10).map("".join) | st.text()


def found_answer(text):
    return split_reasoning(text).answer


@given(TEXTS)
def test_reasoning_and_answer_make_up_the_response_and_an_unsplit_one_is_both(text):
    split = split_reasoning(text)
    if find_answer(text) is None:
        assert split == (text, text, 0)
    else:
        assert split.reasoning + split.answer == text
        assert len(split.reasoning) == split.answer_start == find_answer(text)


@given(TEXTS, st.text("abc .\n"))
def test_the_text_after_thinking_is_the_answer_whatever_was_thought(thought, said):
    assert found_answer(f"<think>{thought}\n</think>\n\n{said}") == said.lstrip()


def test_the_reasoning_keeps_its_tags_so_that_another_answer_can_follow():
    assert split_reasoning("<think>\nHm.\n</think>\n\nIt is 4.") == ("<think>\nHm.\n</think>\n\n", "It is 4.", 22)
    assert split_reasoning("Hm.</think>4").reasoning == "Hm.</think>"


def test_a_thinking_block_takes_precedence_over_every_final_answer():
    text = "<think>\nFinal answer: 3\n\\boxed{3}\n</think>\nSteps.\nFinal answer: 4"
    assert found_answer(text) == "Steps.\nFinal answer: 4"


def test_truncated_thinking_has_an_empty_answer():
    text = "<think>Final answer: 3"
    assert split_reasoning(text) == (text, "", len(text))


@pytest.mark.parametrize(
    "line",
    [
        "Final answer: 3",
        "final answer is 3",
        "The final answer is 3.",
        "**Final Answer:** 3",
        "**Final Answer**",
        "## Final Answer ##",
        "  Final answer",
        "__The Final Answer__: 3",
        "Final answer\r",
        "✅ **My final answer:** 3",
        "> - Final answer: 3",
        "Final answers: 3",
        "最终答案：3",
        "Respuesta final: 3",
    ],
)
def test_without_thinking_the_answer_begins_at_the_final_answer_line(line):
    assert split_reasoning(f"So x is 3.\n{line}\nMore of it.") == ("So x is 3.\n", f"{line}\nMore of it.", 11)


@pytest.mark.parametrize(
    "line",
    [
        "The final answer must be positive",
        "final answering: 3",
        "Her final answer: 3",
        "Answer: 3",
        "A: 3",
        "Finally: 3",
        "The final answer isolates x",
        r"\boxed{} and \boxed{3",
    ],
)
def test_other_lines_do_not_split_the_response(line):
    text = f"So x is 3.\n{line}\nMore of it."
    assert split_reasoning(text) == (text, text, 0)


def test_the_last_final_answer_counts_and_takes_precedence_over_any_box():
    assert found_answer("Final answer: 3\nNo.\nFinal answer: 4\nYes.") == "Final answer: 4\nYes."
    assert found_answer("So \\boxed{3}\nFinal answer: 3") == "Final answer: 3"
    assert found_answer("So.\n### Final Answer\n\nThe dose:\n\\boxed{3}") == "### Final Answer\n\nThe dose:\n\\boxed{3}"


def test_without_either_the_answer_begins_at_the_line_of_the_last_box():
    assert split_reasoning("So:\nx is \\boxed{3}.\nOr\n  it is \\boxed{\n4}, I say.\nBye \\boxed{}") == (
        "So:\nx is \\boxed{3}.\nOr\n",
        "  it is \\boxed{\n4}, I say.\nBye \\boxed{}",
        23,
    )


def test_a_response_that_is_all_answer_has_no_reasoning():
    assert split_reasoning("\\boxed{3}") == ("", "\\boxed{3}", 0)
    assert split_reasoning("") == ("", "", 0)


def test_a_custom_rule_may_be_given():
    assert split_reasoning("a; b", rule=lambda text: text.index(";") + 1) == ReasoningSplit("a;", " b", 2)
    assert split_reasoning("a; b", rule=lambda text: None) == ("a; b", "a; b", 0)
    assert split_reasoning("ab", rule=len) == ("ab", "", 2)


@pytest.mark.parametrize("place", [-1, 3])
def test_a_position_outside_the_text_is_refused(place):
    with pytest.raises(ValueError, match=f"the rule returned {place}"):
        split_reasoning("ab", rule=lambda text: place)


WORDS = re.compile(r"(?<!x)<(?=a{0,3}>)|ab{1,4}|x")
"""It looks back, looks ahead, and has matches of several lengths; at most five characters matter."""


@given(st.text("<>abx ", max_size=60), st.integers(1, 12))
@example("abbbb" * 3, 2)
@example("<aaa>" * 3, 4)
def test_the_matches_are_those_of_a_search_of_the_whole(text: str, piece: int) -> None:
    found = [one.span() for one in find_in_pieces(WORDS, text, 5, piece)]
    assert found == [one.span() for one in WORDS.finditer(text)]


@given(st.integers(-80, 80), st.sampled_from(THINK_TAGS))
def test_thinking_ends_at_a_tag_wherever_a_piece_ends(shift: int, tags: tuple[str, str]) -> None:
    opening, closing = tags
    thinking = "a" * (PIECE + shift - len(opening))
    split = split_thinking(f"{opening}{thinking}{closing}5", None)
    assert (split.thinking, split.answer_start) == (thinking, len(opening + thinking + closing))


@given(
    st.integers(-LONGEST_TOKEN, LONGEST_TOKEN), st.sampled_from(["<|im_end|>", "[/INST]", "<fake_token_around_image>"])
)
def test_control_tokens_are_broken_wherever_a_piece_ends(shift: int, token: str) -> None:
    before = "a" * (PIECE + shift)
    assert neutralise(f"{before}{token}{before}") == f"{before}{token[0]} {token[1:]}{before}"
