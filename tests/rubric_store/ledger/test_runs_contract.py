"""The contract of run figures: they follow from the rows, on every database."""

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from statistics import pstdev

import pytest
from sqlalchemy import create_engine, text

from judge_server.ports import RunReader
from rubric_store import CursorError, RubricStore, SQLLedger, migrations
from rubric_store.ledger.rows import LedgerRows, RunChartQuery, RunReportQuery
from tests.rubric_store.examples import rubric
from tests.rubric_store.ledger_rows import AT, PROJECT, RUBRIC, digest, request, rewarded, verdict
from tests.rubric_store.schema_dump import sync_url
from trainer_client.wire import PinnedRubric
from trainer_client.wire.runs import CriterionFigures, RunReport

RUN = RunReportQuery(PROJECT, "run")
FIGURES = ("ledger_runs", "ledger_run_steps", "ledger_run_failures", "ledger_run_rubrics", "ledger_run_criteria")


async def report(reader: RunReader, view: RunReportQuery = RUN) -> RunReport:
    """The report of an existing run."""
    found = await reader.run(view)
    assert found is not None
    return found


def of_rubric(rows: LedgerRows, name: str) -> LedgerRows:
    """The rows as if judged by another rubric."""
    return rows._replace(responses=[row._replace(rubric=digest(name)) for row in rows.responses])


def dumped(url: str) -> dict[str, list[tuple[object, ...]]]:
    """Every row of the figures, with sums of scores and rewards rounded to nine digits."""
    engine = create_engine(sync_url(url))
    with engine.connect() as connection:
        found = {
            name: sorted(
                tuple(round(value, 9) if isinstance(value, float) else value for value in row)
                for row in connection.execute(text(f"SELECT * FROM {name}"))
            )
            for name in FIGURES
        }
    engine.dispose()
    return found


async def test_a_run_summarises_its_judgements(ledger: SQLLedger) -> None:
    ledger.write(rewarded(request(1, [["a", "b"], ["c", "d"]], failed=["b"], step=3), 0.5, None))
    later = request(2, [["e", "f"]], failed=["f"], step=4, at=AT + timedelta(minutes=1))
    ledger.write(rewarded(later._replace(uses=[row._replace(cached=True) for row in later.uses]), 1.0))
    run = (await report(ledger)).run
    assert (run.run, run.first_at, run.last_at, run.last_step) == ("run", AT, AT + timedelta(minutes=1), 4)
    assert (run.requests, run.responses, run.scored, run.partial, run.unscored) == (2, 3, 2, 0, 1)
    assert run.mean_reward == 0.75
    assert (run.verdicts, run.failed, run.failures, run.cached) == (6, 2, {"timeout": 2}, 1)
    assert (run.judge_calls, run.tokens_written, run.mean_seconds) == (4, 20, 1.5)
    assert (run.prompt_tokens_computed, run.prompt_tokens_reused) == (60, 40)
    assert (run.modes, run.protocols, run.judges, run.rubrics) == (("weighted_mean",), ("binary",), ("m",), 1)
    assert (await ledger.runs(PROJECT)).runs == (run,)


async def test_a_step_summarises_its_judgements_and_the_pass_rate_of_each_criterion(ledger: SQLLedger) -> None:
    scores = {"a": 1.0, "b": 0.0, "c": 0.5, "d": 0.49}
    rows = rewarded(request(1, [["a", "b"], ["c", "d"], ["e", "x"]], failed=["x"], step=7), 0.25, 0.5, 0.75)
    ledger.write(rows._replace(verdicts=[verdict(n, score=scores.get(n, 1.0)) for n in "abcde"]))
    ledger.write(request(2, [["a", "b"]], step=8))
    found = await report(ledger)
    step = found.steps[0]
    assert (step.step, step.requests, step.responses, step.mean_reward) == (7, 1, 3, 0.5)
    assert step.std_reward == pytest.approx(pstdev([0.25, 0.5, 0.75]))
    assert (step.verdicts, step.failed, step.failures) == (6, 1, {"timeout": 1})
    assert step.criteria == (
        CriterionFigures(criterion="c0", verdicts=3, failed=0, pass_rate=1.0, mean_score=2.5 / 3),
        CriterionFigures(criterion="c1", verdicts=3, failed=1, pass_rate=0.0, mean_score=0.49 / 2),
    )
    assert [(each.criterion, each.verdicts) for each in found.criteria] == [("c0", 4), ("c1", 4)]
    assert found.criteria_count == 2


async def test_rewards_under_the_rubrics_own_weights_are_averaged_beside_the_rewards(ledger: SQLLedger) -> None:
    rows = rewarded(request(1, [["a"], ["b"], ["c"]], step=3), 0.5, 1.0, None)
    declared = (0.25, 0.75, None)
    own = [row._replace(declared_reward=each) for row, each in zip(rows.responses, declared, strict=True)]
    ledger.write(rows._replace(responses=own))
    ledger.write(rewarded(request(2, [["d"]], step=4), 0.5))
    found = await report(ledger)
    assert (found.run.mean_reward, found.run.mean_declared_reward) == (pytest.approx(2 / 3), 0.5)
    assert [(step.mean_reward, step.mean_declared_reward) for step in found.steps] == [(0.75, 0.5), (0.5, None)]
    assert "mean_declared_reward" not in found.steps[1].model_dump(mode="json")
    charts = await ledger.run_charts(RunChartQuery(PROJECT, "run"))
    assert [step.mean_declared_reward for step in charts.steps] == [0.5, None]


async def test_steps_without_a_number_and_runs_without_a_name_are_included(ledger: SQLLedger) -> None:
    ledger.write(request(1, [["a"]], run="", step=None))
    ledger.write(request(2, [["a"]], run="", step=0))
    found = await report(ledger, RunReportQuery(PROJECT, ""))
    assert (found.run.run, found.run.last_step) == (None, 0)
    assert [step.step for step in found.steps] == [None, 0]


async def test_responses_judged_without_a_reward_have_no_reward_and_no_mode(ledger: SQLLedger) -> None:
    rows = request(1, [["a"]])
    bare = [row._replace(reward=None, status=None) for row in rows.responses]
    ledger.write(rows._replace(responses=bare, requests=[row._replace(mode=None, model=None) for row in rows.requests]))
    (step,) = (await report(ledger)).steps
    assert (step.responses, step.scored, step.unscored, step.mean_reward, step.std_reward) == (1, 0, 0, None, None)
    assert ((await report(ledger)).run.modes, (await report(ledger)).run.judges) == ((), ())


async def test_votes_count_as_one_verdict(ledger: SQLLedger) -> None:
    rows = request(1, [["a", "b", "c", "d", "e", "f", "g", "h", "i"]], votes=3, failed=["g", "h", "i"])
    yes = {"a": 1.0, "b": 1.0, "c": 0.0, "d": 1.0, "e": 0.0, "f": 0.0}
    ledger.write(rows._replace(verdicts=[verdict(name, score=score) for name, score in yes.items()]))
    found = await report(ledger)
    assert [(c.criterion, c.verdicts, c.failed, c.mean_score) for c in found.criteria] == [
        ("c0", 1, 0, 1.0),
        ("c1", 1, 0, 0.0),
        ("c2", 1, 1, None),
    ]
    assert found.run.failures == {"timeout": 1}


async def test_a_tie_of_votes_counts_as_no(ledger: SQLLedger) -> None:
    rows = request(1, [["a", "b"]], votes=2)
    ledger.write(rows._replace(verdicts=[verdict("a", score=1.0), verdict("b", score=0.0)]))
    assert [c.pass_rate for c in (await report(ledger)).criteria] == [0.0]


async def test_the_earlier_of_two_verdicts_written_together_counts(ledger: SQLLedger) -> None:
    rows = request(1, [["a"]])
    ledger.write(rows._replace(verdicts=[verdict("a", 1, score=1.0), verdict("a", 2, score=0.0)]))
    assert [c.mean_score for c in (await report(ledger)).criteria] == [1.0]


async def test_grades_of_votes_are_averaged(ledger: SQLLedger) -> None:
    rows = request(1, [["a", "b"]], votes=2)
    graded = [verdict("a", score=0.5, grade=2.0), verdict("b", score=0.75, grade=3.0)]
    ledger.write(rows._replace(verdicts=graded))
    (criterion,) = (await report(ledger)).criteria
    assert (criterion.pass_rate, criterion.mean_score) == (1.0, 0.625)


async def test_rows_written_again_count_once_even_beside_new_ones(ledger: SQLLedger, migrated_url: str) -> None:
    first, second = request(1, [["a", "b"]], failed=["b"]), request(2, [["c", "d"]])
    ledger.write(first)
    before = dumped(migrated_url)
    ledger.write(first)
    assert dumped(migrated_url) == before
    ledger.write(LedgerRows(*[one + other for one, other in zip(first, second, strict=True)]))  # type: ignore[arg-type]
    assert (await report(ledger)).run.requests == 2
    assert [c.verdicts for c in (await report(ledger)).criteria] == [2, 2]


async def test_a_request_repeated_in_one_batch_counts_once_as_it_was_first(
    ledger: SQLLedger, migrated_url: str
) -> None:
    first, again = request(1, [["a", "b"], ["c", "d"]], failed=["b"]), request(1, [["a", "b"], ["c", "d"]])
    ledger.write(LedgerRows(*[one + two for one, two in zip(first, again, strict=True)]))  # type: ignore[arg-type]
    before = dumped(migrated_url)
    ledger.write(again)
    assert dumped(migrated_url) == before
    (run,) = (await ledger.runs(PROJECT)).runs
    assert (run.requests, run.responses, run.verdicts, run.failed, run.judge_calls) == (1, 2, 4, 1, 2)


async def test_concurrent_writers_lose_no_figure(ledger: SQLLedger, migrated_url: str) -> None:
    def some(writer: int) -> None:
        own = SQLLedger(migrated_url)
        for number in range(8):
            runs = ["one", "two"] if writer % 2 else ["two", "one"]
            parts = [
                request(1 + 1000 * writer + 10 * number + place, [["a", "b"], ["c", "d"]], run=run, step=number % 2)
                for place, run in enumerate(runs)
            ]
            own.write(LedgerRows(*[one + other for one, other in zip(*parts, strict=True)]))  # type: ignore[arg-type]

    with ThreadPoolExecutor(4) as writers:
        list(writers.map(some, range(4)))
    for run in ("one", "two"):
        found = await report(ledger, RunReportQuery(PROJECT, run))
        assert (found.run.requests, found.run.responses, found.run.verdicts) == (32, 64, 128)
        assert [[c.verdicts for c in step.criteria] for step in found.steps] == [[32, 32]] * 2


async def test_rows_that_were_not_written_are_not_counted(ledger: SQLLedger, migrated_url: str) -> None:
    rows = request(1, [["a"]])
    with pytest.raises(ValueError, match="seconds"):
        ledger.write(rows._replace(requests=[row._replace(seconds=None) for row in rows.requests]))  # type: ignore[arg-type]
    assert not any(dumped(migrated_url).values())


async def test_steps_are_paged_in_either_order_and_within_a_range(ledger: SQLLedger) -> None:
    for number, step in enumerate([4, None, 9, 2, 7, 4], 1):
        ledger.write(request(number, [[f"{number}a", f"{number}b"]], step=step))

    async def read(view: RunReportQuery) -> list[int | None]:
        numbers, after = [], None
        while True:
            found = await report(ledger, view._replace(after=after, limit=2))
            numbers += [step.step for step in found.steps]
            assert len(found.steps) <= 2
            assert all([c.criterion for c in step.criteria] == ["c0", "c1"] for step in found.steps)
            if (after := found.next_cursor) is None:
                return numbers

    assert await read(RUN) == [None, 2, 4, 7, 9]
    assert await read(RUN._replace(newest_first=True)) == [9, 7, 4, 2, None]
    assert await read(RUN._replace(first=4)) == [4, 7, 9]
    assert await read(RUN._replace(last=4)) == [2, 4]
    assert await read(RUN._replace(first=3, last=7, newest_first=True)) == [7, 4]
    assert await read(RUN._replace(first=10)) == []


async def test_criteria_are_filtered_by_rubric_name_and_number(ledger: SQLLedger) -> None:
    ledger.write(request(1, [["a", "b", "c"]], step=1))
    ledger.write(of_rubric(request(2, [["d", "e"], ["f", "g"]], step=2), "other"))

    async def told(**wanted: object) -> dict[str, int]:
        found = await report(ledger, RUN._replace(**wanted))  # type: ignore[arg-type]
        by_step = {c.criterion for step in found.steps for c in step.criteria}
        assert by_step == {c.criterion for c in found.criteria}
        assert found.run.verdicts == 7
        return {c.criterion: c.verdicts for c in found.criteria}

    assert await told() == {"c0": 3, "c1": 3, "c2": 1}
    assert await told(rubric=RUBRIC) == {"c0": 1, "c1": 1, "c2": 1}
    assert await told(rubric=digest("other")) == {"c0": 2, "c1": 2}
    assert await told(rubric=digest("nobody's")) == {}
    assert await told(criterion_ids=("c2", "c1", "nothing")) == {"c1": 3, "c2": 1}
    assert await told(criteria=1) == {"c0": 3}
    assert await told(criteria=0) == {}
    assert (await report(ledger, RUN._replace(criteria=0))).criteria_count == 3


async def test_rubrics_are_listed_most_used_first_with_their_names(migrated_url: str) -> None:
    ledger, store = SQLLedger(migrated_url), RubricStore(migrated_url)
    content = rubric("Is short.")
    for name in ("z/first", "team/short"):
        await store.publish(PROJECT, name, content)
    known = bytes.fromhex(content.digest.removeprefix("sha256:"))
    ledger.write(request(1, [["a"]]))
    rows = request(2, [["a"], ["b"]])
    ledger.write(rows._replace(responses=[row._replace(rubric=known) for row in rows.responses]))
    bare = request(3, [["a"], ["b"], ["c"]])
    ledger.write(bare._replace(responses=[row._replace(rubric=None) for row in bare.responses]))
    found = await report(ledger)
    assert found.rubrics == (
        PinnedRubric(digest=content.digest, name="team/short", version=1),
        PinnedRubric(digest=f"sha256:{RUBRIC.hex()}"),
    )
    assert found.run.rubrics == 2
    assert [c.verdicts for c in found.criteria] == [6]
    await ledger.close()
    await store.close()


async def test_runs_are_paged_by_activity(ledger: SQLLedger) -> None:
    names = ["a", "", "c/d", "ünï 训练", "%_"]
    for number, name in enumerate(names, 1):
        ledger.write(request(number, [["a"]], run=name, at=AT + timedelta(seconds=number // 2)))
    ledger.write(request(9, [["a"]], run="a", at=AT - timedelta(days=1)))
    ledger.write(request(10, [["a"]], project="p2", run="elsewhere"))
    seen, after = [], None
    while True:
        page = await ledger.runs(PROJECT, after=after, limit=2)
        seen += [each.run or "" for each in page.runs]
        assert len(page.runs) <= 2
        if (after := page.next_cursor) is None:
            break
    assert sorted(seen) == sorted(names)
    at = {(each.run or ""): each.last_at for each in (await ledger.runs(PROJECT)).runs}
    assert all(at[first] >= at[second] for first, second in pairwise(seen))
    assert (await ledger.runs("p3")).runs == ()


async def test_runs_that_continue_during_paging_appear_at_most_once_and_all_others_once(ledger: SQLLedger) -> None:
    names = [f"run-{number}" for number in range(8)]
    for number, name in enumerate(names):
        ledger.write(request(number, [["a"]], run=name, at=AT + timedelta(seconds=number)))
    seen, after, moved = [], None, ["run-1", "run-7", "run-4"]
    for number, name in enumerate(moved):
        page = await ledger.runs(PROJECT, after=after, limit=2)
        seen += [each.run for each in page.runs]
        after = page.next_cursor
        ledger.write(request(100 + number, [["a"]], run=name, at=AT + timedelta(minutes=1 + number)))
    seen += [each.run for each in (await ledger.runs(PROJECT, after=after, limit=8)).runs]
    assert len(set(seen)) == len(seen)
    assert set(names) - set(seen) == {"run-1"}
    first = await ledger.runs(PROJECT, limit=3)
    assert [each.run for each in first.runs] == moved[::-1]


async def test_projects_are_separate(ledger: SQLLedger) -> None:
    ledger.write(request(1, [["a"]]))
    ledger.write(request(1, [["a", "b"]], project="p2"))
    assert (await report(ledger)).run.verdicts == 1
    assert (await report(ledger, RUN._replace(project_id="p2"))).run.verdicts == 2
    assert await ledger.run(RUN._replace(project_id="p3")) is None
    assert await ledger.run(RUN._replace(run="another")) is None


@pytest.mark.parametrize("cursor", ["nonsense!", "AAAA", "LTI", "é", "MjAyNS0wMS0wMVQwMDowMDowMCBydW4"])
async def test_a_cursor_that_no_page_returned_is_refused(ledger: SQLLedger, cursor: str) -> None:
    ledger.write(request(1, [["a"]]))
    with pytest.raises(CursorError, match="next_cursor"):
        await ledger.runs(PROJECT, after=cursor)
    with pytest.raises(CursorError, match="next_cursor"):
        await ledger.run(RUN._replace(after=cursor))


async def test_figures_are_deleted_with_the_last_request_of_a_run(ledger: SQLLedger, migrated_url: str) -> None:
    ledger.write(request(1, [["a", "b"]], run="gone", failed=["b"]))
    ledger.write(request(2, [["c"]]))
    ledger.write(request(3, [["d"]], at=AT + timedelta(days=2)))
    ledger.write(request(4, [["e"]], project="p2", run="gone"))
    ledger.purge(PROJECT, before=AT + timedelta(days=1))
    assert await ledger.run(RUN._replace(run="gone")) is None
    assert (await report(ledger)).run.requests == 2
    assert await ledger.run(RunReportQuery("p2", "gone")) is not None
    ledger.purge(PROJECT, run="run")
    ledger.purge("p2", run="gone")
    assert not any(dumped(migrated_url).values())


def many_rows(chance: random.Random) -> list[LedgerRows]:
    """Requests of several runs, steps, modes and rubrics, with votes, failures and cached verdicts."""
    made = []
    for number in range(1, 40):
        votes = chance.choice([1, 1, 3])
        names = [[f"v{chance.randrange(80)}" for _ in range(3 * votes)] for _ in range(chance.randrange(1, 4))]
        given = [name for response in names for name in response]
        rows = request(
            number,
            names,
            run=chance.choice(["one", "two", ""]),
            step=chance.choice([None, 0, 1, 2]),
            failed=chance.sample(given, len(given) // 5),
            votes=votes,
            at=AT + timedelta(seconds=chance.randrange(1000)),
        )
        first = {row.digest: row for row in rows.verdicts}
        found = [row._replace(score=sum(row.digest) % 5 / 4) for row in first.values()]
        uses = [row._replace(cached=chance.random() < 0.3) for row in rows.uses]
        failed = {(use.place, use.slot) for use in uses if use.failure}
        rows = rows._replace(
            verdicts=found,
            uses=[use._replace(failed=(use.place, use.slot) in failed) for use in uses],
            requests=[
                row._replace(mode=chance.choice([None, "points"]), model=chance.choice([None, "m"]))
                for row in rows.requests
            ],
        )
        rows = rewarded(rows, *[chance.choice([None, chance.random()]) for _ in names])
        made.append(of_rubric(rows, "other") if chance.random() < 0.3 else rows)
    return made


@pytest.mark.parametrize("seed", range(3))
def test_figures_computed_by_the_migration_equal_those_kept_while_writing(migrated_url: str, seed: int) -> None:
    ledger = SQLLedger(migrated_url)
    for rows in many_rows(random.Random(seed)):
        ledger.write(rows)
    kept = dumped(migrated_url)
    migrations.downgrade(migrated_url, "0006")
    migrations.upgrade(migrated_url)
    assert all(kept.values())
    assert dumped(migrated_url) == kept


async def test_a_constant_reward_has_no_deviation(ledger: SQLLedger) -> None:
    for number in range(1, 30):
        ledger.write(rewarded(request(number, [["a"]] * 3), 0.1, 0.1, 0.1))
    (step,) = (await report(ledger)).steps
    assert (step.mean_reward, step.std_reward) == (pytest.approx(0.1), 0.0)
