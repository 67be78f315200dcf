"""`adjudge judges compare`: two judges judge a run again; a run with labels is a data set."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from adjudge_services.cli.judge_choice import open_client
from adjudge_services.cli.output import out
from adjudge_services.settings import Settings
from judge_server.scoring.rubrics import PROJECT_ID
from rubric_store import SQLLedger
from rubric_store.ledger.rows import UseFilter, VerdictKey
from tests.services.command import adjudge, failure_of
from trainer_client.wire import RewardAnswer

RUBRIC: dict[str, Any] = {
    "criteria": [{"id": "a", "description": "Is right."}, {"id": "b", "description": "Is brief.", "weight": 2}]
}
GROUPS, RESPONSES = 6, 4


def record(rubric: dict[str, Any], run: str | None = None, engine: str = "scripted://hash") -> RewardAnswer:
    """Have groups judged, and wait until the ledger has them."""
    rows = [
        {"id": f"g{n}", "prompt": f"{n}?", "responses": [f"r{n}-{k}" for k in range(RESPONSES)]} for n in range(GROUPS)
    ]

    async def judge() -> RewardAnswer:
        settings = Settings(engine_url=engine)
        ledger = SQLLedger(settings.store_url)
        async with open_client(None, settings, run) as client:
            answer = await client.rewards(rows, rubric)
            seen = UseFilter(PROJECT_ID, run or "", limit=1000)
            while len(await ledger.uses(seen)) < len(rubric["criteria"]) * GROUPS * RESPONSES:  # noqa: ASYNC110 (another thread writes)
                await asyncio.sleep(0.01)
        await ledger.close()
        return answer

    return asyncio.run(judge())


@pytest.fixture
def judged(migrated: None) -> RewardAnswer:
    """Groups in the ledger, judged by hash in requests without a run."""
    return record(RUBRIC)


@pytest.mark.usefixtures("migrated")
def test_a_run_with_a_criterion_that_a_program_verifies_is_compared_by_the_others() -> None:
    by_program = {
        "id": "b",
        "description": "Is r0-0.",
        "verification": {"method": "exact", "of": "response", "expected": "r0-0"},
    }
    answer = record({"criteria": [RUBRIC["criteria"][0], by_program]}, "mixed")
    result = adjudge(
        "judges", "compare", "scripted://hash", "scripted://hash", "--on", "run:mixed", "--json", exit_code=0
    )
    found = json.loads(result.stdout)
    rewards = [response.reward or 0.0 for group in answer.groups for response in group.responses]
    assert (found["verdicts"], list(found["by_criterion"])) == (GROUPS * RESPONSES, ["a"])
    assert found["reward_a"]["value"] == pytest.approx(sum(rewards) / len(rewards))


@pytest.mark.usefixtures("judged")
def test_a_judge_compared_with_itself_shows_no_difference_and_passes() -> None:
    result = adjudge("judges", "compare", "scripted://hash", "scripted://hash", "--on", "run:", "--json", exit_code=0)
    found = json.loads(result.stdout)
    assert (found["responses"], found["verdicts"]) == (GROUPS * RESPONSES, 2 * GROUPS * RESPONSES)
    for name in ("turned", "reward_shift", "advantage_distance", "advantage_flipped", "best_changed"):
        assert found[name] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert found["reward_correlation"]["value"] == pytest.approx(1.0)


def test_another_judge_is_measured_against_the_first(judged: RewardAnswer, monkeypatch: pytest.MonkeyPatch) -> None:
    result = adjudge("judges", "compare", "scripted://hash", "scripted://yes", "--on", "run:", "--json")
    assert result.exit_code == 1  # whatever the first judge preferred, the second does not see
    found = json.loads(result.stdout)
    responses = [response for group in judged.groups for response in group.responses]
    rewards = [response.reward or 0.0 for response in responses]
    scores = [verdict.score for response in responses for verdict in response.verdicts]
    assert found["reward_a"]["value"] == pytest.approx(sum(rewards) / len(rewards))
    assert found["reward_b"]["value"] == 1.0
    assert found["turned"]["value"] == pytest.approx(scores.count(0.0) / len(scores))
    assert found["by_criterion"]["a"]["n"] == GROUPS * RESPONSES
    assert found["advantage_flipped"]["value"] > 0.5
    assert found["spread_lost"]["value"] > 0.5
    monkeypatch.setattr(out, "width", 80)
    shown = adjudge("judges", "compare", "scripted://hash", "scripted://yes", "--on", "run:")
    assert shown.stdout.startswith("Not shown to be harmless: ")
    assert "…" not in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    adjudge(
        "judges", "compare", "scripted://hash", "scripted://hash", "--on", "run:", "--most-flipped", "0", exit_code=0
    )


@pytest.mark.usefixtures("migrated")
def test_a_run_is_compared_with_what_another_run_recorded_of_its_responses() -> None:
    answers = [record(RUBRIC, "r"), record(RUBRIC, "r/second", "scripted://yes")]
    result = adjudge("judges", "compare", "run:r", "run:r/second", "--json")
    found = json.loads(result.stdout)
    assert (found["run"], found["a"], found["b"]) == ("r", "r", "r/second")
    assert (found["responses"], found["verdicts"]) == (GROUPS * RESPONSES, 2 * GROUPS * RESPONSES)
    for side, answer in zip("ab", answers, strict=True):
        rewards = [response.reward or 0.0 for group in answer.groups for response in group.responses]
        assert found[f"reward_{side}"]["value"] == pytest.approx(sum(rewards) / len(rewards))
    asked = json.loads(adjudge("judges", "compare", "run:r", "scripted://yes", "--sample", "5", "--json").stdout)
    assert (asked["groups"], asked["reward_b"]["value"]) == (5, 1.0)
    backwards = adjudge("judges", "compare", "scripted://yes", "run:r", "--on", "run:r/second", "--json")
    assert json.loads(backwards.stdout)["groups"] == GROUPS
    same = adjudge("judges", "compare", "run:r", "run:r", "--most-flipped", "0", exit_code=0)
    assert same.stdout.startswith("Harmless on this sample")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("run:r", "second"), "adjudge reverify r --verdicts all --judge second --into r/second"),
        (("run:r", "run:other"), "no group of run 'r' was judged whole in the other run too, by the same rubric"),
        (("run:r", "run:other", "--b-template", "strict"), "run:other is judged already"),
        (("scripted://yes", "run:r"), "write run:NAME, or let A be run:NAME"),
        (("run:r", "run:none"), "the ledger has nothing of run 'none'"),
    ],
)
@pytest.mark.usefixtures("migrated")
def test_what_cannot_be_compared_is_refused_with_a_way_out(given: tuple[str, ...], why: str) -> None:
    record(RUBRIC, "r")
    record({"criteria": RUBRIC["criteria"][:1]}, "other")
    assert why in failure_of(adjudge("judges", "compare", *given))


@pytest.mark.usefixtures("judged")
def test_a_run_with_labels_is_a_data_set(tmp_path: Path) -> None:
    labels = tmp_path / "labels.jsonl"
    rows = [{"group": f"g{n}", "response": 1, "labels": {"a": True, "b": n % 2 == 0}} for n in range(GROUPS)]
    labels.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = adjudge("evaluate", "scripted://yes", "run:", "--labels", labels, "--json", exit_code=0)
    (overall, *_) = json.loads(result.stdout)["agreement"]
    assert (overall["n"], overall["figures"]["accuracy"]["value"]) == (2 * GROUPS, 0.75)
    labels.write_text(json.dumps({"group": "g0", "response": 9, "labels": {"a": True}}))
    refused = adjudge("evaluate", "scripted://yes", "run:", "--labels", labels)
    assert "the run has no response 9 of group 'g0'" in " ".join(refused.stderr.split())


@pytest.mark.usefixtures("judged")
def test_labels_given_in_the_console_are_a_data_set() -> None:
    assert "label verdicts in the console" in failure_of(adjudge("evaluate", "scripted://yes", "run:"))

    async def label() -> None:
        ledger = SQLLedger(Settings().store_url)
        given = 0
        for use in await ledger.uses(UseFilter(PROJECT_ID, "", limit=1000)):
            row = use.votes[0][0]
            if use.response.position == 1:
                key = VerdictKey(row.run, row.request, row.place, row.slot)
                await ledger.set_label(PROJECT_ID, key, "ada", row.criterion == "a" or given % 4 == 1)
                given += 1
        await ledger.close()

    asyncio.run(label())
    result = adjudge("evaluate", "scripted://yes", "run:", "--json", exit_code=0)
    found = json.loads(result.stdout)
    (overall, *_) = found["agreement"]
    assert (overall["n"], overall["figures"]["accuracy"]["value"]) == (2 * GROUPS, 0.75)
    assert (found["labels by"], found["examples"]) == ("ada", str(GROUPS))


@pytest.mark.usefixtures("judged")
def test_the_verdicts_of_a_runs_judge_are_labels() -> None:
    result = adjudge("evaluate", "scripted://hash", "verdicts:", "--json", exit_code=0)
    found = json.loads(result.stdout)
    (overall, *_) = found["agreement"]
    assert (overall["n"], overall["figures"]["accuracy"]["value"]) == (2 * GROUPS * RESPONSES, 1.0)
    assert found["labels by"] == "the judge of the run ''"
    refused = adjudge("evaluate", "scripted://yes", "verdicts:", "--labels", __file__)
    assert "leave out --labels" in failure_of(refused)
    other = json.loads(adjudge("evaluate", "scripted://yes", "verdicts:", "--json", exit_code=0).stdout)
    assert other["agreement"][0]["figures"]["accuracy"]["value"] < 0.9


@pytest.mark.parametrize("name", ["run", "verdicts"])
def test_a_file_may_be_called_like_a_source_of_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"id": "q", "prompt": "?", "responses": ["r"], "rubric": RUBRIC, "labels": [{"a": True, "b": False}]}
    Path(name).write_text(json.dumps(row) + "\n")
    found = json.loads(adjudge("evaluate", "scripted://yes", name, "--json", exit_code=0).stdout)
    assert found["agreement"][0]["n"] == 2


@pytest.mark.usefixtures("judged")
def test_an_unknown_run_is_reported() -> None:
    assert "the ledger has nothing of run 'none'" in failure_of(
        adjudge("judges", "compare", "scripted://hash", "scripted://yes", "--on", "run:none")
    )
