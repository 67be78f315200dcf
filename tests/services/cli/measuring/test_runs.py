"""`adjudge runs`: the runs that a real service judged, read from the service and from its database."""

import json
import re
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from adjudge_services.cli.measuring.runs import criteria_table, heading, runs_table, steps_table
from tests.fixtures.waiting import wait_until
from tests.services.command import outcome
from tests.services.processes import get, scoring
from trainer_client.wire.ledger import CriterionFigures, RunReport, RunStep, RunSummary

pytestmark = pytest.mark.usefixtures("migrated")

AT = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
FIGURES: dict[str, Any] = {
    "requests": 2,
    "responses": 8,
    "scored": 7,
    "partial": 0,
    "unscored": 1,
    "mean_reward": 0.5,
    "verdicts": 1600,
    "failed": 3,
    "failures": {"timeout": 2, "parse": 1},
    "cached": 400,
    "judge_calls": 12,
    "prompt_tokens_computed": 250,
    "prompt_tokens_reused": 750,
    "tokens_written": 16,
    "mean_seconds": 0.25,
    "modes": ("points",),
}


def summary(**fields: Any) -> RunSummary:
    """Return a run's summary."""
    given = {"run": "r", "first_at": AT, "last_at": AT, "last_step": 3, "protocols": ("binary",), "judges": ("m",)}
    return RunSummary.model_validate(FIGURES | given | {"rubrics": 1} | fields)


def criterion(name: str, pass_rate: float | None, verdicts: int = 8) -> CriterionFigures:
    """Return a criterion's figures; without a pass rate all its verdicts failed."""
    failed = verdicts if pass_rate is None else 0
    return CriterionFigures(criterion=name, verdicts=verdicts, failed=failed, pass_rate=pass_rate, mean_score=pass_rate)


def step(number: int | None, *criteria: CriterionFigures, reward: float | None = 0.5) -> RunStep:
    """Return a step's figures."""
    return RunStep.model_validate(
        FIGURES | {"step": number, "mean_reward": reward, "std_reward": 0.1, "criteria": criteria}
    )


def report(*steps: RunStep, **fields: Any) -> RunReport:
    """Return a report of these steps."""
    told: dict[str, Any] = {"rubrics": (), "criteria": (criterion("c", 0.5),), "criteria_count": 1}
    return RunReport.model_validate({"run": summary(), "steps": steps} | told | fields)


def printed(shown: object, width: int = 100) -> str:
    """Return the output on a terminal of this width."""
    console = Console(width=width, record=True, file=StringIO())
    console.print(shown)
    return console.export_text()


def test_a_criterions_curve_is_its_pass_rate_from_first_to_last_step() -> None:
    rates = [0.0, 0.2, None, 0.6, 1.0]
    shown = printed(criteria_table(report(*[step(n, criterion("c", rate)) for n, rate in enumerate(rates)]), 100))
    assert "▁▂·▅█" in shown
    assert "0% → 100%" in shown
    assert "by step" in shown


def test_a_step_without_figures_of_a_criterion_leaves_a_gap() -> None:
    shown = printed(criteria_table(report(step(0, criterion("c", 1.0)), step(1), step(2, criterion("c", 1.0))), 100))
    assert "█·█" in shown


def test_a_long_curve_is_averaged_into_the_available_columns() -> None:
    steps = [step(n, criterion("c", 1.0 if n >= 500 else 0.0, verdicts=n + 1)) for n in range(1000)]
    curves = {
        width: re.findall("[▁▂▃▄▅▆▇█]{5,}", printed(criteria_table(report(*steps), width), width))
        for width in (90, 140)
    }
    assert {width: len(curve) for width, (curve,) in curves.items()} == {90: 31, 140: 60}
    assert curves[140] == ["▁" * 30 + "█" * 30]


@pytest.mark.parametrize("width", [100, 140])
def test_no_table_is_wider_than_the_terminal(width: int) -> None:
    long = "a-criterion-with-a-rather-long-id-as-generators-make-them"
    steps = [step(n, criterion(long, 0.5)) for n in range(300)]
    told = report(*steps, run=summary(run="team/" + "x" * 60), criteria=(criterion(long, 0.5, 10**6),))
    for shown in (runs_table([told.run]), heading(told, width), steps_table(steps, 20), criteria_table(told, width)):
        lines = printed(shown, width).splitlines()
        assert max(map(len, lines)) <= width
    assert "…" in printed(criteria_table(told, width), width)
    assert "50% → 50%" in printed(criteria_table(told, width), width)


def test_the_last_steps_are_shown_with_the_total_number() -> None:
    shown = printed(steps_table([step(n) for n in range(30)], 2))
    assert "the last 2 of 30 steps" in shown
    assert [line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│")] == ["28", "29"]


def test_a_heading_shows_failures_and_the_rewards_curve() -> None:
    told = report(*[step(n, reward=reward) for n, reward in enumerate([0.25, None, 0.5, 0.75])])
    shown = printed(heading(told, 100))
    assert "3 (<1%): 2 timeout, 1 parse" in shown
    assert "▁·▅█ 0.250 → 0.750" in shown
    assert "75% reused; 250 ms a request" in shown


def test_rewards_under_the_rubrics_own_weights_stand_beside_the_rewards() -> None:
    steps = [
        step(n).model_copy(update={"mean_declared_reward": declared}) for n, declared in enumerate([0.25, None, 1])
    ]
    told = report(*steps, run=summary(mean_declared_reward=0.625))
    assert "declared   0.625 on average, by step ▁·█ 0.250 → 1.000" in printed(heading(told, 100))
    assert "declared" not in printed(heading(report(step(0)), 100))


def test_markup_in_names_is_shown_as_text() -> None:
    told = report(run=summary(run="[red]r[/]"), criteria=(criterion("[bold]c", 0.5),))
    assert "[red]r[/]" in printed(runs_table([told.run]), 140)
    assert "[bold]c" in printed(criteria_table(told, 100))


def score_some(client: Any) -> None:
    """Judge three steps of run r."""
    rubric = {"criteria": [{"id": "short", "description": "Is short."}, {"id": "right", "description": "Is right."}]}
    for number in range(3):
        group = {"id": "g", "prompt": "?", "responses": [f"{number}, yes.", f"{number}, no."]}
        client.rewards([group], rubric, "points", step=number)


@pytest.mark.processes
def test_runs_are_listed_and_shown_from_a_service_and_from_its_database(data_dir: Path) -> None:
    with scoring() as (service, client):
        score_some(client)
        wait_until(lambda: get(service, "/v1/ledger").json()["written"] == 12)
        assert [run.run for run in client.runs()] == ["r"]
        over_http = [
            outcome("runs", "--json", "--url", service.url),
            outcome("runs", "show", "r", "--json", "--url", service.url),
        ]
        tables = outcome("runs", "show", "r", "--url", service.url)
        service.stop()
    from_file = [outcome("runs", "--json"), outcome("runs", "show", "r", "--json")]
    assert from_file == over_http
    assert {status for status, _ in from_file} == {0}
    (run,), told = (json.loads(said) for _, said in from_file)
    assert told["run"] == run
    assert [each["step"] for each in told["steps"]] == [0, 1, 2]
    assert (run["responses"], run["verdicts"]) == (6, 12)
    assert outcome("runs", "show", "r") == tables
    assert re.search(r"right +│ +6 │", tables[1])
    assert outcome("runs", "show", "r", "--project", "another")[0] == 1
    assert json.loads(outcome("runs", "--json", "--project", "another")[1]) == []
    only = json.loads(outcome("runs", "show", "r", "--json", "--first-step", "1", "--last-step", "1")[1])
    assert [each["step"] for each in only["steps"]] == [1]


def test_an_empty_ledger_and_an_unknown_run_are_reported(data_dir: Path) -> None:
    status, said = outcome("runs")
    assert (status, "no runs yet" in said) == (0, True)
    status, said = outcome("runs", "show", "nobody")
    assert (status, "no requests of run 'nobody'" in said) == (1, True)
