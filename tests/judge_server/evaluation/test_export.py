"""A run as training data: pairs, SFT rows, best-of-n and verdicts from a ledger that the scorer wrote."""

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.errors import InvalidRequest, NotFound
from judge_server.evaluation.export import ExportQuery, export
from judge_server.ports import Batch, Call, CallFailure, Reply
from judge_server.scoring.recorded import digest_bytes
from rubric_store import SQLLedger
from rubric_store.ledger.rows import ResponseFilter, VerdictKey
from tests.fixtures.migrated import NewSQLite
from tests.judge_server.api.test_ranking import by_quality, ranking
from tests.judge_server.ledger.judged import PROJECT, SynchronousRecorder, rows, score, scorer
from trainer_client.wire.ledger import ExportSummary

RUBRIC = {
    "criteria": [
        {"id": "sum", "description": "Says 7.", "weight": 2},
        {"id": "kind", "description": "Is kind.", "weight": 1},
        {"id": "loud", "description": "Shouts.", "kind": "pitfall", "weight": -1},
        {"id": "secret", "description": "Is brief.", "shadow": True},
    ]
}
MARKS = {"Says 7.": "7", "Is kind.": "please", "Shouts.": "!", "Is brief.": "ok"}
Row = dict[str, Any]


def by_marks(batch: Batch, call: Call) -> Reply | CallFailure:
    """Say yes to a criterion if a response has its mark, and fail on broken ones."""
    if "broken" in batch.shared:
        return CallFailure("engine", "it is away")
    mark = next(mark for text, mark in MARKS.items() if text in call.question)
    return Reply((0.9, 0.1) if mark in batch.shared.partition("Response:")[2] else (0.2, 0.8))


def body(*responses: Any, **fields: Any) -> dict[str, Any]:
    """A request for one group of run `r`."""
    group = {"id": "g", "prompt": "Add three and four", "responses": list(responses)} | fields.pop("group", {})
    return {"run": "r", "groups": [group], "rubric": RUBRIC, "reward": {"mode": "points"}} | fields


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
async def ledger(request: pytest.FixtureRequest, tmp_path: Path, new_sqlite: NewSQLite) -> AsyncIterator[SQLLedger]:
    """An empty ledger in each kind of database."""
    server = request.param == "postgresql"
    opened = SQLLedger(
        request.getfixturevalue("migrated_postgres_url") if server else new_sqlite(tmp_path / "ledger.db")
    )
    yield opened
    await opened.close()


async def exported(ledger: SQLLedger, **query: Any) -> tuple[list[Row], ExportSummary]:
    """The rows of an export and its summary."""
    wanted = ExportQuery(query.pop("project", PROJECT), query.pop("run", "r"), **query)
    *made, summary = [part async for part in export(ledger, ledger, wanted)]
    assert isinstance(summary, ExportSummary)
    assert summary.rows == len(made)
    return made, summary  # type: ignore[return-value]


async def record(ledger: SQLLedger, *bodies: dict[str, Any], keep_texts: bool = True) -> None:
    """Have the scorer judge and record requests."""
    ledger.write(await rows(*bodies, script=by_marks, keep_texts=keep_texts))


async def test_a_pair_is_the_best_and_the_worst_response_to_a_prompt(ledger: SQLLedger) -> None:
    await record(ledger, body("7 please", "7", "no !", "no"))
    (row,), summary = await exported(ledger)
    assert row == {
        "prompt": "Add three and four",
        "chosen": "7 please",
        "rejected": "no !",
        "margin": pytest.approx(4 / 3),
        "chosen_reward": 1.0,
        "rejected_reward": pytest.approx(-1 / 3),
        "step": None,
        "group": "g",
    }
    assert summary == ExportSummary(run="r", rows=1, responses=4)


async def test_every_pair_of_a_prompt_is_made_if_wanted(ledger: SQLLedger) -> None:
    await record(ledger, body("7 please", "7", "no", "nothing"))
    pairs, summary = await exported(ledger, all_pairs=True)
    assert [(row["chosen"], row["rejected"]) for row in pairs] == [
        ("7 please", "7"),
        ("7 please", "no"),
        ("7 please", "nothing"),
        ("7", "no"),
        ("7", "nothing"),
    ]
    assert summary.tied == 1
    _, fewer = await exported(ledger, all_pairs=True, min_margin=0.5)
    assert (fewer.rows, fewer.below, fewer.tied) == (4, 1, 1)


async def test_a_response_whose_judging_failed_is_in_no_pair_and_never_the_best(ledger: SQLLedger) -> None:
    texts = ("7", "broken 7 please", "broken !", "no")
    await record(ledger, body(*texts), body(*texts, on_failure="zero", step=1), body("7", "broken", step=2))
    pairs, summary = await exported(ledger, all_pairs=True)
    assert [(row["step"], row["chosen"], row["rejected"]) for row in pairs] == [(None, "7", "no")]
    assert (summary.unrewarded, summary.alone, summary.repeated, summary.responses) == (5, 1, 1, 10)
    best, _ = await exported(ledger, kind="best")
    assert [(row["completion"], row["best_of"]) for row in best] == [("7", 2)]


async def test_responses_to_a_prompt_are_compared_whatever_requests_they_came_in(ledger: SQLLedger) -> None:
    singles = [body(text, group={"id": f"line-{n}"}) for n, text in enumerate(["no", "7 please", "7"])]
    other = body("no !", group={"prompt": "Another prompt"})
    await record(ledger, *singles[:2], other, singles[2])
    (pair,), summary = await exported(ledger)
    assert (pair["chosen"], pair["rejected"], pair["group"]) == ("7 please", "no", "line-1")
    assert summary.alone == 1
    best, _ = await exported(ledger, kind="best")
    assert [(row["prompt"], row["completion"], row["best_of"]) for row in best] == [
        ("Add three and four", "7 please", 3),
        ("Another prompt", "no !", 1),
    ]


@pytest.mark.parametrize(
    "other",
    [
        {"step": 2},
        {"reward": {"mode": "weighted_mean", "kinds": ["point"]}, "rubric": {"criteria": RUBRIC["criteria"][:2]}},
        {"group": {"grounding": "Three and four are seven."}},
        {"rubric": {"criteria": RUBRIC["criteria"][:2]}},
        {"judging": {"rationale": True}},
    ],
    ids=lambda other: next(iter(other)),
)
async def test_rewards_that_are_not_comparable_are_not_compared(ledger: SQLLedger, other: Row) -> None:
    await record(ledger, body("7", step=1), body("no", **{"step": 1} | other))
    made, summary = await exported(ledger)
    assert (made, summary.alone) == ([], 2)


async def test_a_response_that_was_recorded_twice_is_exported_once(ledger: SQLLedger) -> None:
    await record(ledger, body("7", "no"), body("7", "no"), body("7", "no", step=4))
    for kind, count, repeated in (("pairs", 1, 3), ("sft", 2, 4), ("best", 1, 3), ("verdicts", 8, 16)):
        _, summary = await exported(ledger, kind=kind)
        assert (kind, summary.rows, summary.repeated) == (kind, count, repeated)


async def test_rewarded_responses_are_rows_for_sft(ledger: SQLLedger) -> None:
    await record(ledger, body("7 please", "7", "broken", step=3))
    made, summary = await exported(ledger, kind="sft", min_reward=0.7)
    assert made == [{"prompt": "Add three and four", "completion": "7 please", "reward": 1.0, "step": 3, "group": "g"}]
    assert (summary.below, summary.unrewarded) == (1, 1)


async def test_a_pair_by_criterion_differs_on_its_verdict(ledger: SQLLedger) -> None:
    await record(ledger, body("7 please", "7 !", "please", "broken"))
    pairs, summary = await exported(ledger, by="criterion")
    assert [(row["criterion"], row["description"], row["chosen"], row["rejected"]) for row in pairs] == [
        ("sum", "Says 7.", "7 please", "please"),
        ("kind", "Is kind.", "7 please", "7 !"),
        ("loud", "Shouts.", "7 please", "7 !"),
    ]
    assert [row["margin"] for row in pairs] == [pytest.approx(0.7)] * 3
    assert summary.failed == 3
    (shadow,), _ = await exported(ledger, by="criterion", criterion="kind")
    assert shadow["criterion"] == "kind"
    none, nothing = await exported(ledger, by="criterion", criterion="secret")
    assert (none, nothing.tied) == ([], 1)


async def test_a_verdict_is_a_row_with_what_people_say_of_it(ledger: SQLLedger) -> None:
    await record(ledger, body("7", "broken", group={"grounding": "Sums"}), body("7", group={"grounding": "Sums"}))
    again = (await ledger.responses(ResponseFilter(PROJECT, "r")))[2].response
    await ledger.set_label(PROJECT, VerdictKey("r", again.request, again.place, 1), "key a", True)
    broken = (await ledger.responses(ResponseFilter(PROJECT, "r")))[1].response
    await ledger.set_label(PROJECT, VerdictKey("r", broken.request, broken.place, 0), "key a", False)
    made, summary = await exported(ledger, kind="verdicts")
    assert made[1] == {
        "prompt": "Add three and four",
        "response": "7",
        "grounding": "Sums",
        "criterion": "kind",
        "description": "Is kind.",
        "score": 0.0,
        "probability": pytest.approx(0.2),
        "label": True,
        "method": "judge",
        "step": None,
        "group": "g",
    }
    assert [(row["response"], row["criterion"], row["score"], row["label"]) for row in made] == [
        ("7", "sum", 1.0, None),
        ("7", "kind", 0.0, True),
        ("7", "loud", 0.0, None),
        ("7", "secret", 0.0, None),
        ("broken", "sum", None, False),
    ]
    assert (summary.failed, summary.repeated) == (3, 4)
    only, _ = await exported(ledger, kind="verdicts", criterion="sum")
    assert {row["criterion"] for row in only} == {"sum"}


async def test_messages_stay_messages_and_a_run_of_both_has_the_form_of_its_first_row(ledger: SQLLedger) -> None:
    asked = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Add 3 and 4 – 请"}]
    chat = body("7", "no", group={"prompt": asked})
    await record(ledger, chat, body("7", "no"))
    pairs, _ = await exported(ledger)
    assert [row["prompt"] for row in pairs] == [asked, [{"role": "user", "content": "Add three and four"}]]
    assert pairs[0]["chosen"] == [{"role": "assistant", "content": "7"}]
    await record(ledger, body("7", "no", run="t"), chat | {"run": "t"})
    texts, summary = await exported(ledger, run="t")
    assert ([row["prompt"] for row in texts], summary.of_other_form) == (["Add three and four"], 1)
    both, summary = await exported(ledger, run="t", conversational=True)
    assert [row["rejected"] for row in both] == [[{"role": "assistant", "content": "no"}]] * 2
    assert summary.of_other_form == 0


async def test_rows_without_texts_are_left_out_and_a_run_without_any_says_what_to_set(ledger: SQLLedger) -> None:
    await record(ledger, body("7", "no"), keep_texts=False)
    for kind in ("pairs", "sft", "best", "verdicts"):
        with pytest.raises(InvalidRequest, match="ADJUDGE_LEDGER=all"):
            await exported(ledger, kind=kind)
    await record(ledger, body("7 please", "no !", step=2))
    _, summary = await exported(ledger)
    assert (summary.rows, summary.without_texts) == (1, 1)


async def test_parts_of_a_run_are_selected_by_step_and_rubric(ledger: SQLLedger) -> None:
    short = {"criteria": RUBRIC["criteria"][:2]}
    await record(ledger, *[body(f"7 {n}", f"no {n}", step=n) for n in range(4)], body("7", "no", rubric=short))
    assert [row["step"] for row in (await exported(ledger, first=1, last=2))[0]] == [1, 2]
    digests = [record.response.rubric for record in await ledger.responses(ResponseFilter(PROJECT, "r"))]
    made, summary = await exported(ledger, rubric=digests[-1])
    assert ([row["chosen"] for row in made], summary.responses) == (["7"], 2)
    with pytest.raises(NotFound):
        await exported(ledger, rubric=digest_bytes("sha256:" + "0" * 64))


@pytest.mark.parametrize("project", [PROJECT, "another"])
async def test_a_run_that_a_project_does_not_have_is_not_found(ledger: SQLLedger, project: str) -> None:
    await record(ledger, body("7", "no"))
    for kind in ("pairs", "verdicts"):
        with pytest.raises(NotFound, match="adjudge runs"):
            await exported(ledger, project=project, run="r" if project == "another" else "x", kind=kind)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"kind": "sft", "min_margin": 0.1}, "min_margin"),
        ({"kind": "best", "all_pairs": True}, "all_pairs"),
        ({"kind": "verdicts", "by": "criterion"}, "by"),
        ({"min_reward": 0.5}, "min_reward"),
        ({"criterion": "sum"}, "criterion"),
        ({"first": 2, "last": 1}, "last_step"),
    ],
)
async def test_an_option_that_changes_nothing_is_refused(ledger: SQLLedger, query: Row, field: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field}: "):
        await exported(ledger, **query)


async def test_the_rewards_of_two_rankings_are_not_compared(ledger: SQLLedger) -> None:
    made = await scorer(SynchronousRecorder(ledger), by_quality)
    groups = [["q1", "q2"], ["q3", "q4", "q5"]]
    body = ranking() | {"run": "r"}
    body["groups"] = [body["groups"][0] | {"responses": texts} for texts in groups]
    await score(made, body)
    pairs, summary = await exported(ledger, all_pairs=True)
    assert {(row["chosen"], row["rejected"]) for row in pairs} == {
        ("q2", "q1"), ("q4", "q3"), ("q5", "q3"), ("q5", "q4"),
    }  # fmt: skip
    assert summary == ExportSummary(run="r", rows=4, responses=5)
    nothing, summary = await exported(ledger, kind="verdicts")
    assert (nothing, summary.without_criterion) == ([], 8)


def rewards_by_hash(seed: int) -> Callable[[Batch, Call], Reply | CallFailure]:
    """A judge that answers by a hash of everything, and fails one call in six."""

    def answer(batch: Batch, call: Call) -> Reply | CallFailure:
        number = hashlib.sha256(f"{seed} {batch.shared} {call.question}".encode()).digest()[0]
        if number % 6 == 0:
            return CallFailure("engine", "it is away")
        return Reply((number / 255, 1 - number / 255))

    return answer


_GROUPS = st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 5), min_size=1, max_size=5)), max_size=5)


@given(groups=_GROUPS, seed=st.integers(0, 50), margin=st.sampled_from([0.0, 0.3]))
async def test_pairs_are_those_of_a_prompt_whose_rewards_differ(
    groups: Sequence[tuple[int, list[int]]], seed: int, margin: float, new_sqlite: NewSQLite, tmp_path_factory: Any
) -> None:
    ledger = SQLLedger(new_sqlite(tmp_path_factory.mktemp("export") / "ledger.db"))
    bodies = [
        body(*[f"Answer {n}" for n in texts], group={"prompt": f"Question {prompt}"}, on_failure="skip")
        for prompt, texts in [(9, [0]), *groups]
    ]
    ledger.write(await rows(*bodies, script=rewards_by_hash(seed)))
    recorded = await ledger.responses(ResponseFilter(PROJECT, "r", limit=500))
    texts = await ledger.texts(PROJECT, [digest for one in recorded for digest in one.response[7:9]])
    rewards: dict[tuple[str, str], float] = {}
    for one in recorded:
        key = json.loads(texts[one.response.prompt]), json.loads(texts[one.response.response])
        if one.response.reward is not None and one.response.status != "unscored":
            rewards.setdefault(key, one.response.reward)
    pairs, summary = await exported(ledger, all_pairs=True, min_margin=margin)
    best_and_worst, _ = await exported(ledger, min_margin=margin)
    await ledger.close()
    expected = {
        (prompt, *sorted((a, b), key=lambda text: -rewards[prompt, text]))
        for (prompt, a), (other, b) in combinations(rewards, 2)
        if prompt == other and rewards[prompt, a] != rewards[prompt, b]
        and abs(rewards[prompt, a] - rewards[prompt, b]) >= margin
    }  # fmt: skip
    found = [(row["prompt"], row["chosen"], row["rejected"]) for row in pairs]
    assert len(found) == len(set(found))
    assert set(found) == expected
    for row in pairs:
        assert row["chosen_reward"] == rewards[row["prompt"], row["chosen"]] > row["rejected_reward"]
        assert row["margin"] == row["chosen_reward"] - row["rejected_reward"]
    widest = {prompt: max(row["margin"] for row in pairs if row["prompt"] == prompt) for prompt, *_ in found}
    assert {row["prompt"]: row["margin"] for row in best_and_worst} == widest
    assert summary.responses == len(recorded)
