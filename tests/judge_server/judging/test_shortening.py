"""Long texts are shown without their middle, and the characters left out are counted."""

from hypothesis import given
from hypothesis import strategies as st

from judge_server.judging.presentation import material_characters, shorten_messages, without_middle
from trainer_client.text.thinking import JudgedContent
from trainer_client.wire import Message

messages = st.lists(
    st.builds(
        lambda content, thinking, arguments: Message.model_validate(
            {
                "role": "assistant",
                "content": content,
                "reasoning_content": thinking,
                "tool_calls": [{"function": {"name": "f", "arguments": a}} for a in arguments],
            }
        ),
        st.text(max_size=80),
        st.none() | st.text(max_size=80),
        st.lists(st.text(max_size=80) | st.dictionaries(st.text(max_size=3), st.text(max_size=80)), max_size=3),
    ),
    max_size=5,
)


@given(messages, st.integers(1, 500))
def test_messages_keep_at_most_the_budget_and_the_rest_is_counted(given_: list[Message], keep: int) -> None:
    whole = material_characters(JudgedContent("", 0, tuple(given_)))
    shortened, omitted = shorten_messages(given_, keep)
    assert whole - omitted <= max(keep, 0) or omitted == 0
    assert (omitted == 0) == (whole <= keep)
    assert [m.role for m in shortened] == [m.role for m in given_]
    if not omitted:
        assert shortened == tuple(given_)


def test_the_longest_text_is_shortened_first_in_any_field() -> None:
    short = Message(role="assistant", content="short")
    for long in (
        {"content": "x" * 900},
        {"reasoning_content": "x" * 900},
        {"tool_calls": [{"function": {"name": "f", "arguments": "x" * 900}}]},
        {"tool_calls": [{"function": {"name": "f", "arguments": {"a": "x" * 900}}}]},
    ):
        shown, omitted = shorten_messages([short, Message.model_validate({"role": "assistant", **long})], 105)
        assert shown[0] == short
        assert 800 <= omitted <= 810
        assert f"[{omitted} characters left out]" in shown[1].model_dump_json()


@given(st.text(max_size=50), st.none() | st.integers(1, 60))
def test_a_text_keeps_its_two_ends(text: str, keep: int | None) -> None:
    shown, omitted = without_middle(text, keep)
    if keep is None or len(text) <= keep:
        assert (shown, omitted) == (text, 0)
    else:
        assert omitted == len(text) - keep
        assert shown.startswith(text[: keep - keep // 2])
        assert shown.endswith(text[len(text) - keep // 2 :])
