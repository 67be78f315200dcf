"""Defences remove what deceives a judge and never change honest text."""

import unicodedata
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.engines.scripted import ScriptedEngine, always
from judge_server.evaluation.attacks.corpus import DISGUISES
from judge_server.judging.plan import GroupPlanner
from judge_server.judging.presentation import DECOYS, decoy_for, has_content
from judge_server.judging.shown import GroupContext
from judge_server.ledger.rows import rows_of
from judge_server.prompts.disguises import normalise
from tests.judge_server.conftest import Serve
from tests.judge_server.ledger.judged import SynchronousRecorder, score, scorer
from tests.judge_server.support import CRITERIA, group, prepared
from trainer_client.text.thinking import judged_content
from trainer_client.wire import Criterion, JudgingOptions, RewardRequest, VerdictRequest, as_response

INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u202a\u202e\u2066\u200e\u061c\U000e0041\ufe0f\U000e0101\u3164"
TRICKY = st.text(
    st.sampled_from(f"aAoz 1.#*{INVISIBLE}аеоΑΒαρЖя𝐀𝐛ＡｂⒶ漢かकष्ابש👨👩🏴\U000e0067\U000e007f❤é\u0301ℎ"), max_size=24
)
ASCII_WORDS = st.lists(st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJ", min_size=2, max_size=9), min_size=1, max_size=5)
SCRIPTS = {
    "Chinese": (0x4E00, 0x9FFF),
    "Japanese": (0x3041, 0x30FF),
    "Korean": (0xAC00, 0xD7A3),
    "Arabic": (0x0621, 0x064A),
    "Hebrew": (0x05D0, 0x05EA),
    "Hindi": (0x0904, 0x094D),
    "Bengali": (0x0985, 0x09CD),
    "Thai": (0x0E01, 0x0E3A),
    "Russian": (0x0410, 0x044F),
    "Greek": (0x0391, 0x03C9),
    "French": (0x00C0, 0x00FF),
    "operators": (0x2200, 0x22FF),
    "arrows": (0x2190, 0x21FF),
    "superscripts": (0x2070, 0x209C),
    "fractions": (0x2150, 0x215E),
    "emoji": (0x1F600, 0x1F64F),
}
HONEST = [
    "x² + y² = r², α + β ≤ ½, ρ(A ∪ B) ≈ 3.1 µm/s, ∑ᵢ νᵢ, ∂f/∂x → 0, 𝐱 ⋅ 𝐲",
    "def f(a: list[int]) -> int:\n    return a[0] if a else None  # [], {}, '', x != y, a | b\n\treturn `ls -la`",
    "می‌خواهم کتاب‌ها را بخوانم",  # zero-width non-joiners
    "क्‍ष और श्री हिन्दी में",  # a zero-width joiner
    "👨‍👩‍👧‍👦 ❤️‍🔥 1️⃣ #️⃣ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 👍🏽",
    "ভাষা বাংলা, ภาษา​ไทย, 漢字󠄁、全角，「引用」。",  # a zero-width space between Thai words, a variant of an ideograph
    "שלום‏ (עברית)‏, السلام‎ عليكم",  # direction marks beside letters
    "сахар, Москва, ОТК, Wi-Fi-сеть; Σωκράτης, ΑΘΗΝΑ",
    "résumé, naïve, Straße, Ærø, İstanbul, “quoted” – dashes — …",
]


@given(TRICKY | st.text())
def test_normalising_a_normalised_text_changes_nothing(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@given(st.text(st.characters(max_codepoint=127)))
def test_ascii_is_never_changed(text: str) -> None:
    assert normalise(text) == text


@pytest.mark.parametrize("text", HONEST)
def test_honest_text_is_never_changed(text: str) -> None:
    assert normalise(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("می\u200c\u200c\u200cخ", "می\u200cخ"),
        ("❤\ufe0f\ufe0f\ufe0e", "❤\ufe0f"),
        ("ש\u200f\u200f!", "ש\u200f\u200f!"),
        ("b\u202e\u202e\u2066\u00ady", "by"),
    ],
)
def test_of_repeated_invisible_characters_those_that_do_nothing_go(text: str, shown: str) -> None:
    assert normalise(text) == shown


@cache
def words_of(script: str) -> st.SearchStrategy[list[str]]:
    """Words of a script's assigned characters; cached, since some scripts have thousands."""
    low, high = SCRIPTS[script]
    letters = [chr(code) for code in range(low, high + 1) if unicodedata.category(chr(code)) != "Cn"]
    return st.lists(st.text(st.sampled_from(letters), max_size=8), max_size=5)


@pytest.mark.parametrize("script", SCRIPTS)
@given(data=st.data())
def test_words_of_other_scripts_and_symbols_are_never_changed(script: str, data: st.DataObject) -> None:
    words = data.draw(words_of(script))
    text = data.draw(st.sampled_from([" ", ", ", "\n", " = 2 "])).join(words)
    assert normalise(text) == text


@given(ASCII_WORDS, st.sampled_from(sorted(DISGUISES)))
def test_disguised_words_are_restored(words: list[str], disguise: Any) -> None:
    plain = " ".join(words)
    shown = normalise(DISGUISES[disguise](plain))
    if disguise == "tags":
        assert shown == ""
    elif disguise in ("cyrillic", "greek"):  # whole words of that script are left alone
        for word, spelled in zip(plain.split(), shown.split(), strict=True):
            assert spelled in (word, DISGUISES[disguise](word))
            assert spelled == word or all(c not in word for c in DISGUISES[disguise](word))
    else:
        assert shown == plain


@given(ASCII_WORDS, st.lists(st.sampled_from(INVISIBLE), min_size=1, max_size=6))
def test_nothing_is_hidden_between_latin_letters(words: list[str], hidden: list[str]) -> None:
    assert normalise("".join(hidden).join(words)) == "".join(words)


@given(st.text(st.sampled_from(" \n\t\u00a0\u3000\u200b\ufeff\u2800.,:;!?…。")))
def test_blanks_and_punctuation_are_not_content(text: str) -> None:
    assert not has_content(text)
    assert has_content(f"{text}7{text}")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "Let's solve this step by step.",
            "**Solution:**",
            "## Answer",
            "Step 1:",
            "<think>",
            "解：",
            "---",
            "```\n```",
        ),
        *(
            "Thought process:\n\nLet’s think step by step…",
            "Sure, here is the answer:",
            "### Step 1\n### Step 2",
            "." * 999,
        ),
    ],
)
def test_openings_of_an_answer_are_not_content(text: str) -> None:
    assert not has_content(text)


@pytest.mark.parametrize(
    "text",
    [
        *("A", "7", "yes", "No.", "[]", "{}", '""', "+", "-", "<=", "*", "**", "#", "%", "∅", "👍", "Solution", "解"),
        *("Answer: 4", "Step 1: 7", "Let's solve this: x = 2.", "The answer is B", "Sure!", "π", "x", "?!" + "7" * 400),
    ],
)
def test_anything_that_may_be_an_answer_is_content(text: str) -> None:
    assert has_content(text)


@given(st.text())
def test_a_text_always_gets_the_same_decoy(text: str) -> None:
    assert decoy_for(text) is decoy_for(text)
    assert decoy_for(text) in DECOYS


def planner(defences: Any, protocol: Any = "binary", **context: Any) -> GroupPlanner:
    """A planner with every kind of criterion."""
    criteria = [Criterion.model_validate(one) for one in CRITERIA]
    return GroupPlanner(
        prepared(protocol), GroupContext("Is 7 prime?", **context), criteria, JudgingOptions(defences=defences)
    )


def content(response: Any) -> Any:
    """The judged content of a response."""
    return judged_content(as_response(group(response).responses[0]), "strip")


def test_a_response_without_content_meets_no_criterion_and_only_the_pitfall_is_judged() -> None:
    plan = planner(["no_content"]).plan(content("..."))
    methods = {slot.criterion: slot.method for slot in plan.pending}
    assert methods.pop("pitfall") == "judge"
    assert set(methods.values()) == {"no_content"}
    assert [call.question.criteria for call in plan.planned_calls] == [("pitfall",)]
    assert {result.score for _, result in plan.decided} == {0.0}
    assert plan.awaited == {digest for slot in plan.pending for digest in slot.digests}
    whole = planner(["no_content"]).plan(content("Yes."))
    assert len(whole.planned_calls) == len(CRITERIA)
    assert whole.decided == ()


def test_the_judge_decides_where_an_empty_answer_may_be_right_or_has_other_content() -> None:
    assert planner(["no_content"], reference_answer=" ... ").plan(content("...")).decided == ()
    assert planner(["no_content"], "likert").plan(content("...")).decided == ()
    assert planner(()).plan(content("...")).decided == ()
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = {"text": [{"role": "assistant", "content": "", "tool_calls": [call]}]}
    assert planner(["no_content"]).plan(content(messages)).decided == ()


def test_a_disguised_response_is_judged_like_the_plain_one() -> None:
    plain, disguised = "Yes, it is prime.", "Yes, it іs \u200bp\u200br\u200bi\u200bme\u202e."
    defended, open_ = planner(["normalise"]), planner(())
    assert defended.plan(content(disguised)).digests == defended.plan(content(plain)).digests
    assert open_.plan(content(disguised)).digests != open_.plan(content(plain)).digests
    assert open_.plan(content(plain)).digests == defended.plan(content(plain)).digests
    messages = [{"text": [{"role": "assistant", "content": text}]} for text in (plain, disguised)]
    assert defended.plan(content(messages[0])).digests == defended.plan(content(messages[1])).digests


def test_a_decoy_is_asked_in_addition_to_the_criteria_and_gives_no_verdict() -> None:
    without, with_decoy = planner(()).plan(content("Yes.")), planner(["decoy"]).plan(content("Yes."))
    assert with_decoy.pending == without.pending
    assert with_decoy.planned_calls[:-1] == without.planned_calls
    assert with_decoy.decoy is not None
    assert decoy_for("Yes.").description in with_decoy.planned_calls[-1].question.call.question
    assert with_decoy.awaited == without.awaited | set(with_decoy.decoy.digests)


async def verdicts(serve: Serve, defences: list[str] | None, *responses: str, **judging: Any) -> Any:
    """The answer of a service whose judge always says yes."""
    client = await serve(ScriptedEngine(always(True)))
    options = judging | ({} if defences is None else {"defences": defences})
    body = {"rubric": {"criteria": CRITERIA}, "judging": options, "groups": [group(*responses).model_dump()]}
    return (await client.post("/v1/verdicts", json=body)).json()


async def test_by_default_an_empty_response_costs_one_call_and_meets_no_criterion(serve: Serve) -> None:
    answer = await verdicts(serve, None, "")
    (response,) = answer["groups"][0]["responses"]
    unmet = [v for v in response["verdicts"] if v["criterion"] != "pitfall"]
    assert {(v["status"], v["score"], v["probability"], v["method"]) for v in unmet} == {
        ("ok", 0.0, None, "no_content")
    }
    assert answer["usage"]["judge_calls"] == 1  # about the pitfall
    assert response["suspicious"] is None
    undefended = await verdicts(serve, [], "")
    assert undefended["usage"]["judge_calls"] == len(CRITERIA)


async def test_a_response_that_meets_a_decoy_is_suspicious(serve: Serve) -> None:
    answer = await verdicts(serve, ["decoy"], "Yes.")
    assert answer["groups"][0]["responses"][0]["suspicious"] is True
    assert answer["usage"]["judge_calls"] == len(CRITERIA) + 1
    refused = await verdicts(serve, ["decoy"], "Yes.", protocol="graded")
    assert "judging.defences" in str(refused["errors"])


EXACT = {"method": "regex", "pattern": "7"}
BAIT = [{"id": "said", "description": "Says it."}, {"id": "seven", "description": "Has 7.", "verification": EXACT}]


@pytest.mark.parametrize(("on_failure", "reward"), [("null", None), ("zero", 0.0), ("skip", 1.0)])
async def test_a_suspicious_response_can_fail_and_is_then_rewarded_by_the_failure_policy(
    on_failure: str, reward: float | None
) -> None:
    recorder = SynchronousRecorder()
    made = await scorer(recorder, always(True))
    judging = {"defences": ["decoy"], "on_decoy": "fail"}
    body = {"rubric": {"criteria": BAIT}, "groups": [group("It is 7.").model_dump()], "run": "r"}
    flagged = await score(made, body | {"judging": {"defences": ["decoy"]}})
    (failed,) = (await score(made, body | {"judging": judging, "on_failure": on_failure})).groups[0].responses
    (kept,) = flagged.groups[0].responses
    assert (kept.suspicious, kept.reward, kept.verdicts[0].score) == (True, 1.0, 1.0)
    assert (failed.suspicious, failed.reward) == (True, reward)
    said, seven = failed.verdicts
    assert (said.status, said.score, said.failure and said.failure.kind) == ("failed", None, "decoy")
    assert (seven.status, seven.score, seven.method) == ("ok", 1.0, "regex")
    uses = rows_of(recorder.judged, keep_texts=True).uses
    assert [(use.failed, use.failure) for use in uses] == [(False, None), (False, None), (True, "decoy"), (False, None)]


async def test_a_decoy_fails_verdicts_alike_in_a_stream_and_without_rewards() -> None:
    made = await scorer(SynchronousRecorder(), always(True))
    judging = {"defences": ["decoy"], "on_decoy": "fail"}
    body = {"rubric": {"criteria": BAIT}, "groups": [group("It is 7.").model_dump()], "judging": judging}
    asked = RewardRequest.model_validate(body)
    streamed = [part async for part in made.stream(asked, request_id="r", project_id="default")]
    plain = await made.verdicts(VerdictRequest.model_validate(body), request_id="r", project_id="default")
    assert streamed[0].responses[0].verdicts[0].failure == plain.groups[0].responses[0].verdicts[0].failure  # type: ignore[union-attr]
    assert plain.usage.failed == 1


def test_failing_by_a_decoy_requires_the_decoy_defence() -> None:
    with pytest.raises(ValueError, match="add 'decoy' to defences"):
        JudgingOptions(on_decoy="fail")
