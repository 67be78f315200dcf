"""The contract of monitoring data: sums of a run's signals and its control set, on every database."""

from datetime import timedelta

from rubric_store import SQLLedger
from rubric_store.ledger.rows import LedgerRows, MonitorQuery, SignalRow
from tests.rubric_store.ledger_rows import AT, PROJECT, request, request_key

QUERY = MonitorQuery(PROJECT, "run", first=1, last=2)


def judged(number: int, step: int, *, run: str = "run", signal: str = "shadow", project: str = PROJECT) -> LedgerRows:
    """A request with one signal, whose x is the request's number."""
    rows = request(number, [[f"v{number}"]], run=run, step=step, project=project)
    row = SignalRow(
        project, run, request_key(number), signal, "c", step, 2, float(number), 1, 2, 3, 4, 1, 0.5, 0.5, 0.25
    )
    return rows._replace(signals=[row])


async def test_signals_are_summed_by_step_once_per_request(ledger: SQLLedger) -> None:
    for number, step in ((1, 5), (2, 5), (3, 6)):
        ledger.write(judged(number, step))
    ledger.write(judged(2, 5))
    found = await ledger.monitored_run(QUERY._replace(last=9))
    assert [(one.step, one.pairs, one.x, one.within, one.within_xy) for one in found.signals] == [
        (5, 4, 3.0, 2, 0.5),
        (6, 2, 3.0, 1, 0.25),
    ]
    assert [(one.step, one.responses, one.rewards, one.reward_sum) for one in found.steps] == [
        (5, 2, 2, 1.0),
        (6, 1, 1, 0.5),
    ]


async def test_the_first_step_and_the_last_ones_up_to_the_requested_step_are_read(ledger: SQLLedger) -> None:
    for step in range(6):
        ledger.write(judged(step, step))
    assert [one.step for one in (await ledger.monitored_run(QUERY)).steps] == [0, 4, 5]
    assert [one.step for one in (await ledger.monitored_run(QUERY._replace(until=3))).steps] == [0, 2, 3]
    assert [one.step for one in (await ledger.monitored_run(QUERY)).signals] == [0, 4, 5]


async def test_other_runs_and_projects_are_left_out_but_the_gold_judges_run_is_read(ledger: SQLLedger) -> None:
    ledger.write(judged(1, 1))
    ledger.write(judged(2, 1, run="other"))
    ledger.write(judged(3, 1, project="p2"))
    ledger.write(judged(4, 1, run="run/gold", signal="gold"))
    found = await ledger.monitored_run(QUERY)
    assert [one.x for one in found.signals] == [1.0]
    assert [(one.signal, one.x) for one in found.gold] == [("gold", 4.0)]
    assert (await ledger.monitored_run(QUERY._replace(run="missing"))).steps == ()


async def test_the_control_sets_verdicts_are_read_round_by_round(ledger: SQLLedger) -> None:
    ledger.write(request(1, [["a"]], step=1))
    ledger.write(request(2, [["b", "c"]], run="run/control", step=1, failed=["c"]))
    ledger.write(request(3, [["d", "e"]], run="run/control", step=2, score=0.0))
    found = (await ledger.monitored_run(QUERY)).control
    assert [(one.step, one.fingerprint, one.criterion, one.score) for one in found] == [
        (1, "sha256:f", "c0", 1.0),
        (1, "sha256:f", "c1", None),
        (2, "sha256:f", "c0", 0.0),
        (2, "sha256:f", "c1", 0.0),
    ]


async def test_requests_that_name_run_and_step_are_read_from_all_projects_the_newest_first(ledger: SQLLedger) -> None:
    written = [("run", 0, PROJECT), ("run", 1, PROJECT), ("run", 7, "p2"), ("", 1, PROJECT), ("run", None, PROJECT)]
    for number, (run, step, project) in enumerate(written, start=1):
        at = AT + timedelta(minutes=number)
        ledger.write(request(number, [[f"v{number}"]], run=run, step=step, project=project, at=at))
    found = await ledger.step_requests(AT + timedelta(minutes=2))
    assert [(one.project_id, one.run, one.step, one.judge_calls) for one in found] == [
        ("p2", "run", 7, 2),
        (PROJECT, "run", 1, 2),
    ]
    assert found[1].arrived_at == AT + timedelta(minutes=2, seconds=-1.5)  # it was answered after 1.5 s
    assert await ledger.step_requests(AT + timedelta(days=1)) == []


async def test_signals_are_purged_with_the_run(ledger: SQLLedger) -> None:
    ledger.write(judged(1, 1))
    ledger.purge(PROJECT, run="run")
    ledger.write(request(2, [["b"]], step=1))
    assert (await ledger.monitored_run(QUERY)).signals == []


async def test_the_last_groups_of_each_criterion_before_a_step_are_counted(ledger: SQLLedger) -> None:
    def groups(number: int, name: str, step: int, met: int, count: int, **fields: str) -> LedgerRows:
        rows = judged(number, step, signal="criterion", **fields)
        signal = rows.signals[0]._replace(name=name, pairs=count, x=float(met))
        return rows._replace(signals=[signal])

    for number, (name, step, met, count) in enumerate(
        [("a", 0, 0, 9), ("a", 1, 3, 3), ("b", 1, 0, 2), ("a", 2, 2, 3), ("a", 500, 4, 4), ("b", 501, 1, 1)]
    ):
        ledger.write(groups(number, name, step, met, count))
    ledger.write(groups(7, "a", 1, 5, 5, run="other"))
    assert await ledger.criterion_groups(PROJECT, "run", 3, 4) == {"a": (5.0, 6.0), "b": (0.0, 2.0)}
    assert await ledger.criterion_groups(PROJECT, "run", 2, 4) == {"a": (3.0, 12.0), "b": (0.0, 2.0)}
    assert await ledger.criterion_groups(PROJECT, "run", 502, 100) == {"a": (4.0, 4.0), "b": (1.0, 1.0)}
    assert await ledger.criterion_groups(PROJECT, "run", 0, 100) == {}
