"""`adjudge runs audit`: a gamed run in the database in, the report out, as text and as JSON."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rubric_store import SQLLedger
from tests.judge_server.evaluation.audit.test_report import BY_DEED, BY_PHRASE, gamed, record, run_of
from tests.services.command import adjudge, failure_of


@pytest.fixture
def gamed_run(migrated: None, data_dir: Path) -> None:
    """A gamed run and another judge's verdicts on its responses; the same with few prompts."""

    async def written() -> None:
        ledger = SQLLedger(f"sqlite+aiosqlite:///{data_dir / 'adjudge.db'}")
        await record(ledger, run_of(gamed))
        await record(ledger, run_of(gamed, "r/[other]"), BY_DEED)
        for run, marks in (("few", BY_PHRASE), ("few/other", BY_DEED)):
            await record(ledger, [body | {"groups": body["groups"][:4]} for body in run_of(gamed, run)], marks)
        await ledger.close()

    asyncio.run(written())


def lines_of(*arguments: Any) -> list[str]:
    """The lines that a command prints."""
    return adjudge("runs", "audit", *arguments, exit_code=0).stdout.splitlines()


def test_the_report_names_the_gamed_criterion_and_its_examples(gamed_run: None) -> None:
    lines = lines_of("r", "--against", "r/[other]")
    assert lines[0] == "r: is its rubric being gamed? there are signs of it"
    assert any("By run 'r/[other]', the share credited for 'checked' did not rise" in line for line in lines)
    assert "late:  steps 4 to 5, 48 responses to 12 prompts" in lines
    assert "r/[other]: another judge, scripted, 96 responses" in lines
    (checked,) = [place for place, line in enumerate(lines) if line.strip().startswith("checked ")]
    assert lines[checked].split()[1:4] == ["0.04", "→", "0.38"]
    assert lines[checked + 1].split()[:4] == ["r/[other]", "0.00", "→", "0.00"]
    assert lines[checked + 1].rstrip().endswith("alone")
    (examples,) = [line for line in lines if line.startswith("checked, credited by the run's judge only:")]
    assert examples.count("step 5, group g") == 3


def test_json_is_the_whole_report(gamed_run: None) -> None:
    report = json.loads("\n".join(lines_of("r", "--against", "r/[other]", "--json")))
    assert (report["answer"], report["criteria"][0]["criterion"]) == ("signs", "checked")
    assert report["criteria"][0]["comparisons"][0]["reading"] == "rose_alone"


def test_a_run_of_few_prompts_says_once_that_there_are_no_intervals(gamed_run: None) -> None:
    lines = lines_of("few", "--against", "few/other")
    assert [line for line in lines if "too few" in line] == ["A part has fewer than 10 prompts: too few for intervals."]
    assert not any("[" in line for line in lines if "→" in line and "early" not in line)


def test_a_run_without_anything_to_compare_with_says_what_to_do(gamed_run: None) -> None:
    lines = lines_of("r")
    assert lines[0].endswith("not known")
    assert any("adjudge reverify" in line for line in lines)
    assert "adjudge runs" in failure_of(adjudge("runs", "audit", "nobody"))
    assert "itself" in failure_of(adjudge("runs", "audit", "r", "--against", "r"))
