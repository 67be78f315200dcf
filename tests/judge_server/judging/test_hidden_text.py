"""A penalty never profits from what a response hides: behind tags, invisible characters or letters that look alike."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.engines.scripted import always
from judge_server.evaluation.attacks.corpus import DISGUISES
from judge_server.judging.plan import GroupPlanner, ResponsePlan
from judge_server.judging.shown import GroupContext
from judge_server.ports import Batch, Call, Reply
from judge_server.prompts.disguises import undisguised
from judge_server.verifiers.worker import decide
from tests.judge_server.judging.test_defences import HONEST
from tests.judge_server.ledger.judged import SynchronousRecorder, score, scorer
from tests.judge_server.support import prepared
from trainer_client.text.thinking import THINK_TAGS, judged_content
from trainer_client.wire import Criterion, JudgingOptions, Message, Response

TAGS = sorted({tag for pair in THINK_TAGS for tag in pair})
INVISIBLE = [
    "\u200b",
    "\u200d",
    "\u00ad",
    "\u2060",
    "\ufeff",
    "\u034f",
    "\u0336",
    "\u202a",
    "\ufe0f",
    "\u180e",
    "\u3164",
]
CONTAINS = {"method": "contains", "any_of": ["forbidden"]}
GOOD = {
    "id": "good",
    "description": "Says fine.",
    "weight": 1,
    "verification": {"method": "contains", "any_of": ["fine"]},
}
BAD = {"id": "bad", "description": "Says forbidden.", "weight": -5, "verification": CONTAINS}
JUDGED_BAD = {"id": "bad", "description": "Says forbidden.", "weight": -5}


def criterion(**fields: Any) -> Criterion:
    return Criterion.model_validate(fields)


def plan_of(response: Any, *criteria: dict[str, Any], opens: Any = None, **fields: Any) -> ResponsePlan:
    given = Response(text=response, **fields)
    planner = GroupPlanner(
        prepared(),
        GroupContext("Q"),
        [criterion(**one) for one in criteria],
        JudgingOptions(defences=("normalise", "no_content")),
    )
    return planner.plan(judged_content(given, "strip", opens))


def points_of(response: Any, *criteria: dict[str, Any], **fields: Any) -> float:
    """The sum of the weights of the criteria that programs find satisfied."""
    plan = plan_of(response, *criteria, **fields)
    checks, by_id = dict(plan.checks), {one["id"]: one["weight"] for one in criteria}
    return sum(by_id[slot.criterion] * decide(checks[slot.digests[0]]).score for slot in plan.pending)  # type: ignore[union-attr]


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_in_the_middle_takes_no_penalty_away(tag: str) -> None:
    assert points_of(f"forbidden {tag} fine", GOOD, BAD) <= points_of("forbidden fine", GOOD, BAD) == -4
    assert points_of(f"for{tag}bidden fine", GOOD, BAD) <= -4
    messages = (Message(role="assistant", content=f"forbidden {tag} fine"), Message(role="assistant", content="fine"))
    assert points_of(messages, GOOD, BAD) <= -4


PIECES = st.lists(
    st.sampled_from([*TAGS, *INVISIBLE, "`", " ", "\n", "fine", "forbidden"]) | st.text(max_size=3), max_size=6
).map("".join)
VIOLATION = st.tuples(
    st.sampled_from(["", "fine ", "Well, "]), st.sampled_from(["", " fine", "\nDone."]), st.sampled_from(["none", None])
)


@given(
    VIOLATION, st.integers(0, 20), st.sampled_from([*TAGS, *INVISIBLE]), st.integers(0, 20), st.sampled_from(INVISIBLE)
)
def test_inserting_a_tag_or_invisible_characters_never_raises_a_penalised_reward(
    around: tuple[str, str, Any], at: int, tag: str, other: int, invisible: str
) -> None:
    before, after, opens = around
    plain = f"{before}forbidden{after}"
    hidden = f"{plain[:at]}{tag}{plain[at:]}"
    hidden = f"{hidden[:other]}{invisible}{hidden[other:]}" if tag in INVISIBLE else hidden
    assert points_of(hidden, GOOD, BAD, opens=opens) <= points_of(plain, GOOD, BAD, opens=opens)


@given(st.sampled_from(sorted(DISGUISES)), PIECES)
def test_a_disguised_word_is_still_found(disguise: Any, before: str) -> None:
    word = DISGUISES[disguise]("forbidden")
    if disguise == "tags":  # letters without a shape: nobody reads them
        return
    assert points_of(f"fine: {word} fine", GOOD, BAD) == -4
    if disguise not in ("cyrillic", "greek"):
        assert points_of(word, {**GOOD, "verification": CONTAINS}) in (0, 1)


@pytest.mark.parametrize(
    "word",
    [
        "ｆｏｒｂｉｄｄｅｎ",
        "fоrbiddеn",
        "𝗳𝗼𝗿𝗯𝗶𝗱𝗱𝗲𝗻",
        "ⓕⓞⓡⓑⓘⓓⓓⓔⓝ",
        "for\u00adbidden",
        "f\u0336orbidden",
        "🅵🅾🆁🅱🅸🅳🅳🅴🅽",
        "\u202eneddibrof\u202c",
    ],
)
@pytest.mark.parametrize(
    "verification",
    [
        CONTAINS,
        {"method": "contains", "all_of": ["Forbidden"]},
        {"method": "regex", "pattern": "forbid+en", "case_sensitive": False},
        {"method": "exact", "of": "response", "expected": "forbidden"},
    ],
)
def test_a_criterion_of_negative_weight_sees_through_disguises_and_one_of_positive_weight_does_not(
    word: str, verification: dict[str, Any]
) -> None:
    bad = {**BAD, "verification": verification}
    assert points_of(word, bad) == -5
    assert points_of(word, {**BAD, "weight": 1, "verification": verification, "kind": "pitfall"}) == 1
    if verification["method"] != "exact":  # which takes invisible characters for none
        assert points_of(word, {**bad, "weight": 1}) == 0


def test_a_pattern_of_what_a_response_must_not_say_is_no_way_around() -> None:
    clean = {
        "id": "clean",
        "description": "d",
        "weight": 1,
        "verification": {"method": "regex", "pattern": r"^(?![\s\S]*forbidden)"},
    }
    assert points_of("fine", clean) == 1
    for text in ("forbidden", "for\u200bbidden", "forbidden</think> fine", "for</think>bidden"):
        assert points_of(text, clean) == 0


def test_the_thinking_of_a_models_own_template_stays_out_of_every_criterion() -> None:
    assert points_of("<think>Say forbidden? No.</think>fine", GOOD, BAD) == 1
    assert points_of("Say forbidden? No.</think>fine", GOOD, BAD, opens="<think>") == 1
    assert points_of("Say forbidden? No. fine", GOOD, BAD, opens="<think>", stopped=False) == 0
    assert points_of("Say forbidden? No.</think>fine", GOOD, BAD) == -4  # who knows?


@pytest.mark.parametrize("text", [*HONEST, "I said fine.", "<think>Hm</think> é 漢字"])
def test_an_honest_text_is_searched_once(text: str) -> None:
    (check,) = [check for _, check in plan_of(text, BAD).checks]
    assert all(undisguised(one.text) == one.text for one in check.beside)
    assert not (text.isascii() and check.beside)


@pytest.mark.parametrize(
    "text",
    [
        "сахар, Москва, ОТК, Wi-Fi-сеть; Σωκράτης, ΑΘΗΝΑ",
        "résumé, naïve, Straße, Ærø, İstanbul, Łódź, ế",
        "x² + y² = r², α + β ≤ ½, ∂f/∂x → 0",
        "漢字、ひらがな。",
        "плохо: сор в избе",
    ],
)
def test_undisguising_keeps_other_scripts_accents_and_formulas(text: str) -> None:
    assert undisguised(text) == text


@given(st.text())
def test_undisguising_an_undisguised_text_changes_nothing(text: str) -> None:
    assert undisguised(undisguised(text)) == undisguised(text)


def _reads(word: str) -> Any:
    yes, no = always(True), always(False)

    def script(batch: Batch, call: Call) -> Reply:
        said = f"{batch.shared}" if "forbidden" in call.question else ""
        return (yes if word in said.replace("forbidden.", "") else no)(batch, call)

    return script


async def reward(response: Any, *criteria: dict[str, Any], script: Any, **judging: Any) -> tuple[Any, Any]:
    group = {"id": "g", "prompt": "Q", "responses": [response]}
    body = {"rubric": {"criteria": list(criteria)}, "groups": [group], "judging": judging}
    answer = await score(await scorer(SynchronousRecorder(), script), body | {"reward": {"mode": "points"}})
    return answer.groups[0].responses[0].reward, answer.groups[0].responses[0].characters_hidden


@pytest.mark.parametrize("tag", TAGS)
async def test_the_judge_sees_what_a_tag_hides_where_a_criterion_may_count_against_it(tag: str) -> None:
    value, _ = await reward(f"forbidden {tag} fine", GOOD, JUDGED_BAD, script=_reads("forbidden"))
    assert value is not None
    assert value <= -4


async def test_the_judge_is_shown_nothing_hidden_if_nothing_counts_against_a_response() -> None:
    shown: list[str] = []

    def script(batch: Batch, call: Call) -> Reply:
        shown.append(batch.shared)
        return always(True)(batch, call)

    criterion = {"id": "a", "description": "Is right.", "weight": 1}
    _, hidden = await reward("plan </think> fine", criterion, script=script)
    assert ("plan" in shown[0], hidden) == (False, len("plan </think> "))
    await reward("<think>plan</think> fine", criterion, {**criterion, "id": "b", "weight": -1}, script=script)
    await reward(
        "plan</think> fine", criterion, {**criterion, "id": "b", "weight": -1}, script=script, prompt_opens="<think>"
    )
    assert not [text for text in shown if "plan" in text or "set apart" in text]
    await reward("plan</think> fine", criterion, {**criterion, "id": "b", "weight": -1}, script=script)
    assert "set apart" in shown[-1]
    assert "plan" in shown[-1]


@pytest.mark.parametrize("prompt", ["Q", "Q <think>\n"])
async def test_a_response_that_never_closes_the_templates_block_says_nothing(prompt: str) -> None:
    judging = {} if "think" in prompt else {"prompt_opens": "<think>"}
    right = {"id": "a", "description": "Is right.", "weight": 1}
    body = {
        "rubric": {"criteria": [right]},
        "judging": judging,
        "groups": [
            {
                "id": "g",
                "prompt": prompt,
                "responses": ["It is 4.", "Hm.</think>It is 4.", {"text": "4", "stopped": False}],
            }
        ],
    }
    answer = await score(await scorer(SynchronousRecorder(), always(True)), body)
    cut, whole, short = answer.groups[0].responses
    assert (cut.reward, cut.verdicts[0].method, cut.characters_hidden) == (0.0, "no_content", 8)
    assert (whole.reward, whole.verdicts[0].method, whole.characters_hidden) == (1.0, "judge", 11)
    assert (short.reward, short.verdicts[0].method) == (0.0, "no_content")
