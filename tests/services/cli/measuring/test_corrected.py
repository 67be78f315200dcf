"""`adjudge runs show --corrected`: pass rates corrected by a measurement of the run's own judge, or the reason."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from adjudge_services.cli.judge_choice import open_client
from adjudge_services.settings import Settings
from judge_server.scoring.rubrics import PROJECT_ID
from rubric_store import SQLLedger
from rubric_store.ledger.rows import UseFilter
from tests.services.command import adjudge, failure_of
from trainer_client.errors import NotFound

pytestmark = pytest.mark.usefixtures("migrated")

CRITERIA = [{"id": f"c{n}", "description": f"Has property {n}."} for n in range(3)]
EXACT = {"id": "digits", "description": "Has 4.", "verification": {"method": "regex", "pattern": "4"}}
LABELLED, GROUPS, RESPONSES = 160, 25, 4


def written(file: Path, rows: list[Any]) -> str:
    """Write JSONL."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.fixture
def labelled(tmp_path: Path) -> str:
    """Labels that agree with the judge in about nine of ten cases."""
    plain = [
        {"id": f"l{n}", "prompt": "?", "responses": [f"labelled {n}"], "rubric": {"criteria": CRITERIA}}
        for n in range(LABELLED)
    ]
    scored = adjudge("score", written(tmp_path / "plain.jsonl", plain), "--engine", "scripted://hash", "--jsonl")
    rows = []
    for place, line in enumerate(scored.stdout.splitlines()):
        verdicts = json.loads(line)["responses"][0]["verdicts"]
        labels = {v["criterion"]: (v["score"] == 1.0) != ((3 * place + n) % 10 == 0) for n, v in enumerate(verdicts)}
        rows.append(plain[place] | {"labels": [labels]})
    return written(tmp_path / "labelled.jsonl", rows)


def judge(name: str, engine: str = "scripted://hash", criteria: list[Any] = CRITERIA, **options: Any) -> None:
    """Judge groups for a run, and wait until the ledger has them."""
    rows = [
        {"id": f"g{n}", "prompt": f"{n}?", "responses": [f"r{n}-{k}" for k in range(RESPONSES)]} for n in range(GROUPS)
    ]

    async def work() -> None:
        settings = Settings(engine_url=engine)
        ledger = SQLLedger(settings.store_url)
        async with open_client(None, settings) as client:
            client.run = name
            before = len(await ledger.uses(UseFilter(PROJECT_ID, name, limit=1000)))
            await client.rewards(rows, {"criteria": criteria}, **options)
            expected = before + len(criteria) * GROUPS * RESPONSES
            while len(await ledger.uses(UseFilter(PROJECT_ID, name, limit=1000))) < expected:  # noqa: ASYNC110 (another thread writes)
                await asyncio.sleep(0.01)
        await ledger.close()

    asyncio.run(work())


def shown(name: str, *arguments: str) -> dict[str, Any]:
    """Return the output of `adjudge runs show --json`."""
    result = adjudge("runs", "show", name, "--json", *arguments, exit_code=0)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


async def over_http(name: str, **part: int) -> Any:
    """Return the service's corrected rates of a run, as JSON, or None if it has no such part."""
    async with open_client(None, Settings(engine_url="scripted://hash")) as client:
        try:
            return (await client.corrected_rates(name, **part)).model_dump(mode="json")
        except NotFound:
            return None


def any_corrected(found: dict[str, Any]) -> bool:
    """Whether the rate of any criterion was corrected."""
    return any(one["corrected"] for one in found["criteria"])


def evaluated(file: Path, labelled: str, engine: str = "scripted://hash", *arguments: str) -> str:
    """Write a report on a judge; return its file."""
    result = adjudge("evaluate", engine, labelled, "--json", *arguments, exit_code=0)
    file.write_text(result.stdout)
    return str(file)


def test_rates_are_corrected_by_the_calibration_of_the_run(labelled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adjudge("calibrate", "scripted://hash", labelled, "--name", "team", exit_code=0)
    judge("plain")
    monkeypatch.setenv("ADJUDGE_CALIBRATIONS", "team")
    judge("calibrated", criteria=[*CRITERIA, EXACT])
    report = shown("calibrated", "--corrected")
    corrected = report["corrected"]
    assert (corrected["reason"], corrected["source"]) == (None, "calibration team@1")
    right, wrong = (corrected["judge_error"][name] for name in ("sensitivity", "specificity"))
    stored = json.loads(adjudge("calibrations", "show", "team").stdout)["measured"]
    assert right["labels"] + wrong["labels"] == stored["brier"]["n"]
    assert {one["criterion"] for one in corrected["criteria"]} == {"c0", "c1", "c2"}  # a program decides the other
    observed = {one["criterion"]: one["pass_rate"] for one in report["criteria"]}
    for one in corrected["criteria"]:
        share = one["passed"] / one["verdicts"]
        assert share == observed[one["criterion"]]
        assert (one["verdicts"], one["groups"]) == (GROUPS * RESPONSES, GROUPS)
        expected = (share + wrong["value"] - 1) / (right["value"] + wrong["value"] - 1)
        assert one["corrected"]["value"] == pytest.approx(min(max(expected, 0), 1))
        assert one["corrected"]["low"] < one["corrected"]["value"] < one["corrected"]["high"]
    assert asyncio.run(over_http("calibrated")) == corrected
    assert asyncio.run(over_http("calibrated", first_step=1)) is None
    other = shown("plain", "--corrected")["corrected"]
    assert not any_corrected(other)
    assert "was not measured by calibration team@1" in other["reason"]


def test_a_report_corrects_only_runs_of_its_own_judge(
    labelled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = evaluated(tmp_path / "report.json", labelled)
    judge("hash")
    monkeypatch.setenv("ADJUDGE_MIN_CHOICE_MASS", "0.03")  # part of the judge's fingerprint
    judge("other")
    corrected = shown("hash", "--evaluation", report)["corrected"]
    assert corrected["source"] == report
    assert [one["criterion"] for one in corrected["criteria"]] == ["c0", "c1", "c2"]
    table = adjudge("runs", "show", "hash", "--evaluation", report).stdout
    assert "corrected [95%]" in table
    assert "{:.0%} [{:.0%}, {:.0%}]".format(*corrected["criteria"][0]["corrected"].values()) in table
    assert "sensitivity 0.9" in " ".join(table.split())
    refused = adjudge("runs", "show", "other", "--evaluation", report)
    assert "are not corrected for the judge's error: the run's judge, sha256:" in " ".join(refused.stdout.split())
    assert "corrected [95%]" not in refused.stdout
    assert not any_corrected(shown("other", "--evaluation", report)["corrected"])


def test_a_report_applies_only_to_its_own_number_of_votes(labelled: str, tmp_path: Path) -> None:
    report = evaluated(tmp_path / "report.json", labelled, "scripted://hash", "--votes", "3", "--rationale")
    judge("three", votes=3, rationale=True)
    judge("five", votes=5, rationale=True)
    three, five = (shown(name, "--evaluation", report)["corrected"] for name in ("three", "five"))
    assert three["source"] == report
    assert "with 5 votes per criterion, was not measured by" in five["reason"]


def test_a_judge_that_always_says_yes_corrects_nothing(labelled: str, tmp_path: Path) -> None:
    report = evaluated(tmp_path / "report.json", labelled, "scripted://yes")
    judge("yes", "scripted://yes")
    corrected = shown("yes", "--evaluation", report)["corrected"]
    assert not any_corrected(corrected)
    assert "not clearly better than chance" in corrected["reason"]
    assert corrected["judge_error"]["sensitivity"]["value"] == 1.0


def test_a_run_of_two_judges_is_not_corrected(labelled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = evaluated(tmp_path / "report.json", labelled)
    judge("both")
    monkeypatch.setenv("ADJUDGE_MIN_CHOICE_MASS", "0.03")
    judge("both")
    assert "judged by 2 judges" in shown("both", "--evaluation", report)["corrected"]["reason"]


def test_without_the_option_the_report_is_unchanged(labelled: str, tmp_path: Path) -> None:
    judge("r")
    assert "corrected" not in shown("r")
    (tmp_path / "other.json").write_text("[]")
    assert "is not a report of `adjudge evaluate --json`" in failure_of(
        adjudge("runs", "show", "r", "--evaluation", tmp_path / "other.json")
    )
