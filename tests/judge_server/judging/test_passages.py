"""A criterion is judged on passages of a text that is too long to be shown whole."""

import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.judging.combining import Band, CascadeRule
from judge_server.judging.passages import MOST_SENTENCES, Excerpt, PassageFinder, common_paragraphs, not_shown
from judge_server.ports import Batch, Call, Reply
from judge_server.scoring.combined import CombinedJudge
from judge_server.scoring.recorded import recorded_page
from judge_server.scoring.scorer import Scorer
from rubric_store import SQLLedger
from rubric_store.ledger.rows import UseFilter
from tests.fixtures.migrated import NewSQLite
from tests.judge_server.api.problems import checked_problem
from tests.judge_server.ledger.judged import PROJECT, SynchronousRecorder, score
from tests.judge_server.support import criteria, group, judge, plan, prepared, request
from trainer_client.wire import Criterion, Passage, Verdict

FACTS = {
    "herons": "Herons nest in the tallest alder of the eastern marsh.",
    "ferry": "The ferry crosses twice a day, except when the river freezes.",
    "library": "Readers may borrow nine volumes and return them within a month.",
}
FILLER = "Nothing of note happened on that grey morning, and everybody went home early again. "
LONG = "".join(FILLER * 12 + fact + " " for fact in FACTS.values()) + FILLER * 12
SHORT = "A short answer about herons."
HERONS, FERRY = "The text says where herons nest.", "The text says when the ferry crosses."
UNHEARD = "Zyzzyvas quack."

texts = st.lists(
    st.one_of(
        st.sampled_from(["Herons nest. ", "\n\n", "\n", "a" * 450, " " * 30, "鹭鸟在树上筑巢。", "\ud83d", "x.y "]),
        st.text(max_size=20),
    ),
    max_size=40,
).map("".join)


def read(text: str, spans: tuple[tuple[int, int], ...]) -> str:
    return " ".join(text[start:end] for start, end in spans)


@given(text=texts, about=texts, characters=st.integers(500, 700))
@example(text="A heron nests." + "\n" * 900 + "A heron hunts.", about="heron", characters=500)
def test_passages_are_in_order_and_within_the_text_and_the_limit(text: str, about: str, characters: int) -> None:
    excerpt = PassageFinder(text).excerpt(about, characters)
    if not excerpt.found:
        return
    edges = [edge for span in excerpt.spans for edge in span]
    assert edges == sorted(set(edges))
    assert edges[-1] <= len(text)
    assert sum(end - start for start, end in excerpt.spans) <= characters
    assert all(text[start:end].strip("\n") in excerpt.text for start, end in excerpt.spans)


@pytest.mark.parametrize("name", FACTS)
def test_the_sentence_that_a_criterion_is_about_is_found(name: str) -> None:
    finder = PassageFinder(LONG)
    excerpt = finder.excerpt(f"It tells of {FACTS[name].lower()}", 500)
    assert excerpt.found
    assert FACTS[name] in read(LONG, excerpt.spans)
    left_out = sum(map(int, re.findall(r"\[(\d+) characters left out\]", excerpt.text)))
    assert left_out + sum(end - start for start, end in excerpt.spans) == len(LONG)


def test_words_are_found_in_a_script_without_spaces() -> None:
    text = "今天早上天气很冷。" * 80 + "渡轮每天两次过河。" + "大家都回家了。" * 80
    assert "渡轮每天两次过河。" in read(text, PassageFinder(text).excerpt("文中说明渡轮何时过河", 500).spans)


def test_without_a_common_word_the_beginning_and_the_end_are_shown() -> None:
    excerpt = PassageFinder(LONG).excerpt(UNHEARD, 500)
    assert (excerpt.found, excerpt.spans) == (False, ((0, 250), (len(LONG) - 250, len(LONG))))


@pytest.mark.parametrize("word", ["Caf\u200bé", "Cafe\u0301", "Ｃａｆé"])
def test_a_word_is_found_as_the_judge_sees_it(word: str) -> None:
    text = f"{FILLER * 12}A {word} opens at noon. {FILLER * 12}"
    assert word in read(text, PassageFinder(text).excerpt("Café", 500).spans)


def test_a_text_of_many_short_sentences_is_shown_in_few_passages() -> None:
    excerpt = PassageFinder("a. b. " * 2000).excerpt("about a", 2000)
    assert len(excerpt.spans) <= MOST_SENTENCES
    assert len(excerpt.text) < 4000


def test_what_no_excerpt_shows_is_counted_once() -> None:
    assert not_shown(100, [Excerpt("", ((0, 10), (20, 40)), found=True), Excerpt("", ((30, 50),), found=True)]) == 60
    assert not_shown(100, []) == 100


@given(st.lists(st.lists(st.sampled_from(["a", "b", ""]), min_size=1).map("\n\n".join), min_size=1))
def test_common_paragraphs_are_a_beginning_of_every_text(texts: list[str]) -> None:
    assert all(text.startswith(common_paragraphs(texts)) for text in texts)


def prompts(response: str, of: list[Criterion], *, passages: int | None = 500, **fields: Any) -> list[str]:
    """The whole prompt of each call about a response."""
    batch = plan(prepared(passages=passages), group(response, **fields), response, of).batch
    return [batch.shared + call.question for call in batch.calls]


def test_each_criterion_is_asked_on_its_own_passages() -> None:
    herons, ferry = prompts(LONG, criteria(HERONS, FERRY))
    assert FACTS["herons"] in herons
    assert FACTS["ferry"] in ferry
    assert max(len(herons), len(ferry)) < 1500 < len(LONG)


def test_a_grounding_is_searched_for_the_criterion_and_the_response() -> None:
    (prompt,) = prompts("The ferry crosses thrice.", criteria("Every fact is in the source."), grounding=LONG)
    assert FACTS["ferry"] in prompt
    assert FACTS["library"] not in prompt
    assert "The ferry crosses thrice." in prompt


def test_texts_that_are_short_enough_are_asked_about_as_without_passages() -> None:
    of = criteria(HERONS, FERRY)
    assert prompts(SHORT, of, grounding=FILLER) == prompts(SHORT, of, passages=None, grounding=FILLER)


def test_hidden_text_is_shortened_too() -> None:
    of = [Criterion(id="c", description=HERONS, weight=-1)]
    hidden = f"An answer.\n<think>{'A lie about herons. ' * 500}</think>\n{LONG}"
    assert max(map(len, prompts(hidden, of))) < 3000


async def test_a_response_is_truncated_further_where_its_passages_are_too_long() -> None:
    judging = {"passages": 3000, "truncate": True}
    asked = body(LONG * 20, HERONS) | {"judging": judging}
    asking = await judge(ScriptedEngine(knows_herons, context_tokens=700))
    answer = await score(Scorer(asking, None), asked)  # type: ignore[arg-type]
    assert answer.groups[0].responses[0].verdicts[0].score == 1.0


def test_a_call_has_the_same_digest_whatever_is_asked_beside_it() -> None:
    def digest(*descriptions: str) -> bytes:
        pending = plan(prepared(passages=500), group(LONG), LONG, criteria(*descriptions)).pending
        return pending[descriptions.index(HERONS)].digests[0]

    assert digest(HERONS) == digest(HERONS, FERRY) == digest(FERRY, UNHEARD, HERONS)


def test_what_calls_share_stands_in_front_once() -> None:
    of = plan(prepared(passages=500), group(LONG, grounding=FILLER), LONG, criteria(HERONS, FERRY)).batch
    assert FILLER.strip() in of.shared
    assert not any(FILLER.strip() in call.question.partition("\n\n")[0][:100] for call in of.calls)


def knows_herons(batch: Batch, call: Call) -> Reply:
    """Answer yes if the whole prompt names the tree."""
    yes = "tallest alder" in batch.shared + call.question
    return Reply((0.9, 0.1) if yes else (0.1, 0.9))


def body(response: str, *descriptions: str, **fields: Any) -> dict[str, Any]:
    rubric = {"criteria": [{"id": f"c{n}", "description": text} for n, text in enumerate(descriptions)]}
    return request(response, rubric=rubric, judging={"passages": 500}, run="r", **fields)


async def judged(response: str, *descriptions: str, recorder: SynchronousRecorder | None = None) -> list[Verdict]:
    scorer = Scorer(await judge(ScriptedEngine(knows_herons)), None, recorder)  # type: ignore[arg-type]
    answer = await score(scorer, body(response, *descriptions))
    return list(answer.groups[0].responses[0].verdicts)


async def test_a_verdict_names_the_passages_of_the_response_as_sent() -> None:
    sent = f"<think>Where do herons nest?</think>{LONG}"
    herons, unheard = await judged(sent, HERONS, UNHEARD)
    assert herons.score == 1.0
    assert herons.passages is not None
    assert FACTS["herons"] in " ".join(sent[one.start : one.end] for one in herons.passages)
    assert (unheard.score, unheard.passages) == (0.0, ())
    assert '"passages":[]' in unheard.model_dump_json()


async def test_a_cascade_names_the_passages_too() -> None:
    members = {name: await judge(ScriptedEngine(knows_herons)) for name in ("small", "large")}
    cascade = CombinedJudge(members, "cascade", CascadeRule(Band(0.4, 0.6)))
    answer = await score(Scorer(cascade, None), body(LONG, HERONS))  # type: ignore[arg-type]
    (verdict,) = answer.groups[0].responses[0].verdicts
    assert (verdict.score, bool(verdict.passages)) == (1.0, True)


async def test_a_decoy_leaves_a_criterion_of_its_name_its_own_passages() -> None:
    rubric = {"criteria": [{"id": "decoy", "description": HERONS}]}
    asked = body(LONG, HERONS) | {"rubric": rubric, "judging": {"passages": 500, "defences": ["decoy"]}}
    answer = await score(Scorer(await judge(ScriptedEngine(knows_herons)), None), asked)  # type: ignore[arg-type]
    assert answer.groups[0].responses[0].verdicts[0].score == 1.0


async def test_a_verdict_on_whole_texts_says_nothing_of_passages() -> None:
    (verdict,) = await judged(SHORT, HERONS)
    assert "passages" not in verdict.model_dump()


async def test_the_ledger_gives_the_passages_back(new_sqlite: NewSQLite, tmp_path: Path) -> None:
    ledger = SQLLedger(new_sqlite(tmp_path / "ledger.db"))
    herons, unheard = await judged(LONG, HERONS, UNHEARD, recorder=SynchronousRecorder(ledger))
    page = await recorded_page(ledger, UseFilter(PROJECT, "r", limit=10), texts=False)
    assert [one.verdict.passages for one in page.verdicts] == [herons.passages, unheard.passages]
    assert isinstance((herons.passages or ())[0], Passage)
    await ledger.close()


@pytest.mark.parametrize(
    "judging",
    [
        {"protocol": "stepwise"},
        {"protocol": "checklist"},
        {"criteria_per_call": 2},
        {"contextual_calibration": True},
    ],
)
async def test_passages_need_one_question_on_one_criterion(http: httpx2.AsyncClient, judging: dict[str, Any]) -> None:
    answer = await http.post("/v1/verdicts", json=request("x", judging={"passages": 500} | judging))
    (error,) = checked_problem(answer)["errors"]
    assert error["field"] == "judging.passages"


async def test_a_ranking_refuses_passages(http: httpx2.AsyncClient) -> None:
    asked = request("x", "y", judging={"passages": 500}, reward={"mode": "ranking"})
    assert "passages" in checked_problem(await http.post("/v1/rewards", json=asked))["errors"][0]["message"]


async def test_messages_are_judged_whole() -> None:
    said = [{"role": "assistant", "content": LONG}]
    scorer = Scorer(await judge(ScriptedEngine(by_hash)), None)  # type: ignore[arg-type]
    answer = await score(scorer, body(said, HERONS))  # type: ignore[arg-type]
    assert answer.groups[0].responses[0].verdicts[0].passages is None
