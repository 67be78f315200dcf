"""The contract of the ledger for recording and recomputing, on every database."""

import json
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, text

from judge_server.ports import LedgerReader
from rubric_store import SQLLedger, migrations
from rubric_store.ledger.rows import JudgedResponse, LedgerRows, PurgeCounts, RunRange, RunReportQuery, UseFilter
from tests.rubric_store import ledger_rows
from tests.rubric_store.ledger_rows import AT, CRITERIA, PROJECT, RUBRIC, digest, request, request_key, verdict
from tests.rubric_store.schema_dump import sync_url

RUN = RunRange(PROJECT, "run")


def rows_in(url: str, table: str) -> int:
    """The number of rows in a table."""
    engine = create_engine(sync_url(url))
    with engine.connect() as connection:
        counted = connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
    engine.dispose()
    return int(counted)


async def judged(ledger: LedgerReader, part: RunRange, at_once: int = 1000) -> list[JudgedResponse]:
    """Every response of a range, read this many uses at a time."""
    found, after = [], None
    while True:
        some, after = await ledger.judged_responses(part, after, at_once)
        found += some
        if after is None:
            return found


async def test_other_work_can_run_while_many_rows_are_written_to_a_server(migrated_url: str) -> None:
    rests = 0

    def rest() -> None:
        nonlocal rests
        rests += 1

    ledger = SQLLedger(migrated_url, rest=rest)
    ledger.write(request(1, [["a", "b"]] * 200))
    assert rests >= (200 if migrated_url.startswith("postgresql") else 0)
    assert len(await ledger.uses(UseFilter(PROJECT, "run", limit=500))) == 400
    await ledger.close()


async def test_every_field_is_read_as_it_was_written(ledger: SQLLedger) -> None:
    found = {"score": 0.1 + 0.2, "probability": 1e-300, "menu_mass": 5e-324, "step": -1, "grade": 3.0}
    found["raw_probability"] = 0.7
    rows = request(1, [["a"]], rationale="Because “7” is prime.", **found)
    ledger.write(rows)
    (use,) = await ledger.uses(UseFilter(PROJECT, "run"))
    assert use.request == rows.requests[0]
    assert use.response == rows.responses[0]
    assert use.votes == [(rows.uses[0], rows.verdicts[0])]


async def test_uses_are_paged_in_the_order_of_judging(ledger: SQLLedger) -> None:
    ledger.write(request(2, [["e", "f"]]))
    ledger.write(request(1, [["a", "b"], ["c", "d"]]))
    after, seen = None, []
    while page := await ledger.uses(UseFilter(PROJECT, "run", after=after, limit=2)):
        last = page[-1].votes[0][0]
        after = (last.request, last.place, last.slot)
        seen += [use.votes[0][0].digest for use in page]
        assert len(page) <= 2
    assert seen == [digest(name) for name in "abcdef"]


async def test_uses_are_found_by_step_rubric_criterion_and_status(ledger: SQLLedger) -> None:
    ledger.write(request(1, [["a", "b"]], step=1, failed=["b"]))
    ledger.write(request(2, [["c", "d"]], step=2))

    async def found(**wanted: object) -> list[bytes]:
        return [use.votes[0][0].digest for use in await ledger.uses(UseFilter(PROJECT, "run", **wanted))]  # type: ignore[arg-type]

    assert await found(step=2) == [digest("c"), digest("d")]
    assert await found(criterion="c1") == [digest("b"), digest("d")]
    assert await found(status="failed") == [digest("b")]
    assert await found(status="ok", criterion="c1") == [digest("d")]
    assert len(await found(rubric=RUBRIC)) == 4
    assert await found(rubric=digest("another")) == []


async def test_a_step_of_many_requests_is_read_page_by_page(ledger: SQLLedger) -> None:
    numbers = range(1, 500)  # a statement searches 200 requests
    ledger.write(LedgerRows.concat([request(n, [[f"{n}a", f"{n}b"]], step=n % 2) for n in numbers]))
    read: list[bytes] = []
    after = None
    while page := await ledger.uses(UseFilter(PROJECT, "run", step=1, after=after, limit=431)):
        assert len(page) in (431, 69)
        uses = [record.votes[0][0] for record in page]
        read += [use.digest for use in uses]
        after = uses[-1].request, uses[-1].place, uses[-1].slot
    assert read == [digest(f"{number}{letter}") for number in numbers[::2] for letter in "ab"]


async def test_a_page_contains_every_vote_of_its_criteria(ledger: SQLLedger) -> None:
    ledger.write(request(1, [["a", "b", "c", "d"], ["e", "f", "a", "b"]], votes=2, failed=["d"]))
    page = await ledger.uses(UseFilter(PROJECT, "run", limit=3))
    assert [[use.digest for use, _ in read.votes] for read in page] == [
        [digest("a"), digest("b")],
        [digest("c"), digest("d")],
        [digest("e"), digest("f")],
    ]
    assert [found is None for _, found in page[1].votes] == [False, True]


async def test_runs_and_projects_are_separate(ledger: SQLLedger) -> None:
    ledger.write(request(1, [["a"]], run="run"))
    ledger.write(request(2, [["b"]], run="run-2"))
    ledger.write(request(3, [["c"]], project="p2", score=0.0))
    assert [use.votes[0][0].digest for use in await ledger.uses(UseFilter(PROJECT, "run"))] == [digest("a")]
    assert (await ledger.judged_run(RunRange("p2", "run"))).requests == 1
    assert (await ledger.judged_run(RunRange("p3", "run"))).requests == 0
    assert await ledger.texts("p2", [digest("response 1.0")]) == {}


async def test_the_first_verdict_is_kept_and_a_different_later_one_is_a_rejudgement(
    ledger: SQLLedger, migrated_url: str
) -> None:
    ledger.write(request(1, [["a"]], score=1.0))
    ledger.write(request(2, [["a"]], score=0.0))
    ledger.write(request(3, [["a"]], score=1.0))
    both = [found for use in await ledger.uses(UseFilter(PROJECT, "run")) for _, found in use.votes]
    assert [found and (found.score, found.request) for found in both] == [(1.0, request_key(1))] * 3
    assert rows_in(migrated_url, "ledger_verdicts") == 1
    assert rows_in(migrated_url, "ledger_rejudgements") == 1


@pytest.mark.parametrize(
    "difference",
    [{"probability": None}, {"menu_mass": 0.25}, {"step": 1}, {"grade": 1.0}, {"rationale": "No."}],
    ids=lambda fields: next(iter(fields)),
)
async def test_any_field_that_differs_makes_a_rejudgement(
    ledger: SQLLedger, migrated_url: str, difference: dict[str, object]
) -> None:
    ledger.write(request(1, [["a"]]))
    ledger.write(request(2, [["a"]])._replace(verdicts=[verdict("a", 2, **difference)]))
    assert rows_in(migrated_url, "ledger_rejudgements") == 1


async def test_a_raw_probability_alone_is_no_rejudgement_because_older_rows_lack_it(
    ledger: SQLLedger, migrated_url: str
) -> None:
    ledger.write(request(1, [["a"]], raw_probability=None))
    ledger.write(request(2, [["a"]]))
    assert rows_in(migrated_url, "ledger_rejudgements") == 0


async def test_the_earlier_of_two_verdicts_written_together_is_kept(ledger: SQLLedger, migrated_url: str) -> None:
    rows = request(1, [["a"]])
    concat = [verdict("a", 1, score=1.0), verdict("a", 2, score=0.0)]
    ledger.write(rows._replace(verdicts=concat))
    (use,) = await ledger.uses(UseFilter(PROJECT, "run"))
    assert use.votes[0][1] == concat[0]
    assert rows_in(migrated_url, "ledger_rejudgements") == 1


async def test_rows_written_again_change_nothing(ledger: SQLLedger, migrated_url: str) -> None:
    rows = request(1, [["a", "b"]], failed=["b"])
    for _ in range(3):
        ledger.write(rows)
    counted = {name: rows_in(migrated_url, f"ledger_{name}") for name in ("texts", "verdicts", "uses", "responses")}
    assert counted == {"texts": 3, "verdicts": 1, "uses": 2, "responses": 1}
    assert rows_in(migrated_url, "ledger_rejudgements") == 0


async def test_rows_are_written_all_or_none(ledger: SQLLedger, migrated_url: str) -> None:
    rows = request(1, [["a"]])
    with pytest.raises(ValueError, match="score"):
        ledger.write(rows._replace(verdicts=[verdict("a", score=None)]))
    assert rows_in(migrated_url, "ledger_texts") == 0
    ledger.write(rows)
    assert rows_in(migrated_url, "ledger_uses") == 1


async def test_rewards_of_a_run_are_read_in_order_a_few_uses_at_a_time(ledger: SQLLedger) -> None:
    for number in range(1, 8):
        rows = request(number, [[f"{number}a", f"{number}b"], [f"{number}c", f"{number}a"]], step=number)
        rules = None if number == 1 else '{"on_failure":"skip"}'
        ledger.write(rows._replace(requests=[row._replace(reward_rules=rules) for row in rows.requests]))
    run = await ledger.judged_run(RUN)
    assert (run.requests, run.uses) == (7, 28)
    assert set(run.judged_by) == {("binary", None, RUBRIC), ("binary", '{"on_failure":"skip"}', RUBRIC)}
    assert run.rubrics == {RUBRIC: CRITERIA}
    assert run.judges == (("sha256:f", 1),)
    at_once = await judged(ledger, RUN)
    assert await judged(ledger, RUN, 1) == await judged(ledger, RUN, 9) == at_once
    assert [(each.request_id, each.position) for each in at_once] == [
        (f"req_{n}", p) for n in range(1, 8) for p in (0, 1)
    ]
    first = at_once[0]
    assert first[1:9] == (1, "g", 0, RUBRIC, 7, True, False, None)
    assert [each.reward_rules for each in at_once[1:3]] == [None, '{"on_failure":"skip"}']
    assert [(vote.slot, vote.criterion, vote.failure, vote.score, vote.step) for vote in first.votes] == [
        (0, "c0", None, 1.0, 2),
        (1, "c1", None, 1.0, 2),
    ]


async def test_a_range_of_a_run_leaves_out_other_steps_and_protocols(ledger: SQLLedger) -> None:
    for number, (step, protocol) in enumerate([(1, "binary"), (2, "likert"), (None, "binary"), (3, "binary")], 1):
        ledger.write(request(number, [[f"{number}a"]], step=step, protocol=protocol))

    async def read(**part: object) -> list[str]:
        chosen = RUN._replace(**part)  # type: ignore[arg-type]
        names = [each.request_id for each in await judged(ledger, chosen)]
        assert (await ledger.judged_run(chosen)).requests == len(names)
        return names

    assert await read() == ["req_1", "req_2", "req_3", "req_4"]
    assert await read(first=1, last=2) == ["req_1", "req_2"]
    assert await read(first=2) == ["req_2", "req_4"]
    assert await read(protocol="binary") == ["req_1", "req_3", "req_4"]
    assert await read(last=3, protocol="binary") == ["req_1", "req_4"]


async def test_a_verdicts_step_takes_precedence_over_the_uses(ledger: SQLLedger) -> None:
    ledger.write(request(1, [["a"]]))
    ledger.write(request(2, [["b"]])._replace(verdicts=[verdict("b", 2, step=5)]))
    assert [each.votes[0].step for each in await judged(ledger, RUN)] == [2, 5]


async def test_a_missing_verdict_has_no_score_and_no_failure(ledger: SQLLedger) -> None:
    ledger.write(request(1, [["a", "b"]], failed=["b"])._replace(verdicts=[]))
    (response,) = await judged(ledger, RUN)
    assert [(vote.score, vote.failure, vote.detail) for vote in response.votes] == [
        (None, None, None),
        (None, "timeout", "too late"),
    ]


async def test_texts_are_read_as_json(ledger: SQLLedger) -> None:
    ledger.write(request(1, [["a"]]))
    kept = await ledger.texts(PROJECT, [digest("prompt"), digest("response 1.0"), digest("nothing")])
    assert {key: json.loads(value) for key, value in kept.items()} == {
        digest("prompt"): "prompt",
        digest("response 1.0"): "response 1.0",
    }


async def test_short_texts_are_read_without_the_long_ones(ledger: SQLLedger) -> None:
    texts = {name: ledger_rows.text(name) for name in ("a" * 98, "a" * 99, "a" * 100_000, "".join(map(chr, range(99))))}
    ledger.write(LedgerRows([*texts.values()], [], [], [], []))
    found = await ledger.short_texts(PROJECT, [*(digest(name) for name in texts), digest("nothing")], 100)
    assert [found[digest(name)] for name in texts] == [json.dumps("a" * 98), None, None, None]
    assert len(found) == len(texts)


async def test_purging_a_run_deletes_it_and_what_only_it_referred_to(ledger: SQLLedger, migrated_url: str) -> None:
    ledger.write(request(1, [["a", "shared"]], run="gone"))
    ledger.write(request(2, [["a", "b"]], run="gone", score=0.0))
    ledger.write(request(3, [["shared", "c"]], run="kept"))
    advanced: list[int] = []
    purged = ledger.purge(PROJECT, run="gone", advance=advanced.append)
    assert purged == PurgeCounts(requests=2, uses=4, verdicts=2, texts=2)
    assert sum(advanced) == 4
    assert (await ledger.judged_run(RunRange(PROJECT, "gone"))).requests == 0
    (kept,) = await judged(ledger, RunRange(PROJECT, "kept"))
    assert [vote.score for vote in kept.votes] == [1.0, 1.0]
    assert await ledger.texts(PROJECT, [digest("prompt"), digest("response 3.0"), RUBRIC])
    assert rows_in(migrated_url, "ledger_rejudgements") == 0
    ledger.write(request(4, [["a"]], run="gone"))
    assert len(await judged(ledger, RunRange(PROJECT, "gone"))) == 1


async def test_purging_by_age_deletes_the_older_requests_of_every_run(ledger: SQLLedger) -> None:
    ledger.write(request(1, [["a"]], at=AT))
    ledger.write(request(2, [["b"]], run="other", at=AT))
    ledger.write(request(3, [["c"]], at=AT + timedelta(days=2)))
    ledger.write(request(4, [["d"]], project="p2", at=AT))
    assert ledger.purge(PROJECT, before=AT + timedelta(days=1)).requests == 2
    assert [each.request_id for each in await judged(ledger, RUN)] == ["req_3"]
    assert len(await judged(ledger, RunRange("p2", "run"))) == 1


async def test_purging_in_many_transactions_keeps_shared_rows_until_the_last(
    ledger: SQLLedger, migrated_url: str
) -> None:
    batches: list[int] = []
    for number, names in enumerate((["a", "shared"], ["a", "b"], ["b", "shared", "c"]), 1):
        ledger.write(request(number, [names], run="gone"))
    ledger.write(request(4, [["shared", "c"]], run="kept"))
    ledger.write(request(5, [["a", "b"]], project="p2"))
    purged = ledger.purge(PROJECT, run="gone", advance=batches.append, requests_per_batch=1)
    assert purged == PurgeCounts(requests=3, uses=7, verdicts=2, texts=3)
    assert sorted(batches) == [2, 2, 3]
    (kept,) = await judged(ledger, RunRange(PROJECT, "kept"))
    (other,) = await judged(ledger, RunRange("p2", "run"))
    assert [vote.score for vote in [*kept.votes, *other.votes]] == [1.0] * 4
    assert ledger.purge(PROJECT, run="kept") == PurgeCounts(requests=1, uses=2, verdicts=2, texts=3)
    assert rows_in(migrated_url, "ledger_texts") == 3


async def test_a_ledger_from_before_migration_0019_can_be_purged_after_it(database_url: str) -> None:
    migrations.upgrade(database_url)
    ledger = SQLLedger(database_url)
    ledger.write(request(1, [["a", "shared"]], run="gone"))
    ledger.write(request(2, [["shared"]], run="kept"))
    migrations.downgrade(database_url, "0018")
    migrations.upgrade(database_url)
    assert ledger.purge(PROJECT, run="gone") == PurgeCounts(requests=1, uses=2, verdicts=1, texts=1)
    assert ledger.purge(PROJECT, run="kept") == PurgeCounts(requests=1, uses=1, verdicts=1, texts=3)
    await ledger.close()


async def test_purging_without_a_criterion_is_refused(ledger: SQLLedger) -> None:
    ledger.write(request(1, [["a"]]))
    with pytest.raises(ValueError, match="a run, a time before"):
        ledger.purge(PROJECT)
    assert len(await judged(ledger, RUN)) == 1


async def test_a_run_may_have_any_name(ledger: SQLLedger) -> None:
    names = ["", "with 'quotes'", "tab\tand\nline", "ünï/çødé 训练 \\N", "%_"]
    for number, name in enumerate(names, 1):
        ledger.write(request(number, [["a"]], run=name))
    for number, name in enumerate(names, 1):
        assert [each.request_id for each in await judged(ledger, RunRange(PROJECT, name))] == [f"req_{number}"]


async def test_a_ledger_without_tables_is_not_ready_and_writing_is_retryable(database_url: str) -> None:
    ledger = SQLLedger(database_url)
    assert not await ledger.ready()
    with pytest.raises(ConnectionError, match="ledger_"):
        ledger.write(request(1, [["a"]]))
    with pytest.raises(ConnectionError):
        await ledger.uses(UseFilter(PROJECT, "run"))
    await ledger.close()


async def test_a_migrated_ledger_is_ready_and_accepts_an_empty_batch(ledger: SQLLedger) -> None:
    ledger.write(LedgerRows([], [], [], [], []))
    assert await ledger.ready()
    assert await ledger.uses(UseFilter(PROJECT, "run")) == []


def without_end(rows: LedgerRows) -> LedgerRows:
    """A request whose reward is so large that its square overflows the run's figures."""
    return rows._replace(responses=[row._replace(reward=1e200) for row in rows.responses])


async def test_a_refused_request_does_not_affect_others_of_its_batch(ledger: SQLLedger, migrated_url: str) -> None:
    victims = [request(n, [["shared", f"v{n}"]], project="victim") for n in range(1, 4)]
    attack = without_end(request(9, [["bad"]], project="attacker"))
    attack = attack._replace(
        texts=[*attack.texts, ledger_rows.text("right", "attacker")],
        responses=[row._replace(reference_answer=digest("right")) for row in attack.responses],
    )
    rows = LedgerRows.concat([victims[0], attack, *victims[1:]])
    with pytest.raises(ValueError, match="OverflowError"):
        ledger.write(rows)
    (refused,) = ledger.salvage(rows)
    assert [sorted(kind) for kind in refused.rows] == [sorted(kind) for kind in attack]  # type: ignore[type-var]
    assert "OverflowError" in refused.reason
    assert rows_in(migrated_url, "ledger_uses") == 6
    assert rows_in(migrated_url, "ledger_requests") == 3
    report = await ledger.run(RunReportQuery("victim", "run"))
    assert report is not None
    assert (report.run.requests, report.run.verdicts) == (3, 6)
    assert await ledger.run(RunReportQuery("attacker", "run")) is None


async def test_only_the_refused_rows_of_a_request_are_left_out(ledger: SQLLedger, migrated_url: str) -> None:
    rows = request(1, [[f"v{n}{m}" for m in range(5)] for n in range(4)])
    verdicts = [row._replace(step=2**70) if row.digest == digest("v12") else row for row in rows.verdicts]
    uses = [row._replace(vote=2**70) if row.digest == digest("v30") else row for row in rows.uses]
    (refused,) = ledger.salvage(rows._replace(verdicts=verdicts, uses=uses))
    assert [row.digest for row in refused.rows.verdicts] == [digest("v12")]
    assert [row.digest for row in refused.rows.uses] == [digest("v30")]
    assert refused.reason
    assert rows_in(migrated_url, "ledger_verdicts") == 19
    assert rows_in(migrated_url, "ledger_uses") == 19
    read = await judged(ledger, RUN)
    assert [vote.score for vote in read[1].votes] == [1.0, 1.0, None, 1.0, 1.0]


async def test_a_refused_response_is_left_out_with_its_uses(ledger: SQLLedger, migrated_url: str) -> None:
    rows = request(1, [["a", "b"], ["c", "d"]])
    bad = rows._replace(responses=[rows.responses[0], rows.responses[1]._replace(tokens=2**70)])
    (refused,) = ledger.salvage(bad)
    assert (refused.rows.responses, refused.rows.uses) == (bad.responses[1:], rows.uses[2:])
    assert rows_in(migrated_url, "ledger_uses") == 2
    assert ledger.salvage(rows) == []  # corrected rows may be written later
    assert rows_in(migrated_url, "ledger_uses") == 4
