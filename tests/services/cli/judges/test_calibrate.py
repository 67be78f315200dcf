"""`adjudge calibrate`: fit labels, store a version, and apply it in a service until its judge changes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from adjudge_services.judges import references_by_judge
from tests.services.command import adjudge, failure_of

pytestmark = pytest.mark.usefixtures("migrated")

CRITERIA = [{"id": f"c{n}", "description": f"Has property {n}."} for n in range(6)]
GROUPS = 40
GROUP = {"id": "g", "prompt": "?", "responses": ["unseen"], "rubric": {"criteria": CRITERIA}}


def written(file: Path, *rows: Any) -> str:
    """Write JSONL."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def label(tmp_path: Path, met: Callable[[float, int, int], bool]) -> str:
    """Write groups labelled by the judge's probability and the numbers of group and criterion."""
    plain = [GROUP | {"id": f"g{n}", "responses": [f"response {n}"]} for n in range(GROUPS)]
    scored = adjudge("score", written(tmp_path / "groups.jsonl", *plain), "--engine", "scripted://hash", "--jsonl")
    rows = []
    for place, line in enumerate(scored.stdout.splitlines()):
        verdicts = json.loads(line)["responses"][0]["verdicts"]
        labels = {v["criterion"]: met(v["probability"], place, n) for n, v in enumerate(verdicts)}
        rows.append(plain[place] | {"labels": [labels]})
    return written(tmp_path / "labelled.jsonl", *rows)


@pytest.fixture
def labelled(tmp_path: Path) -> str:
    """Labels for an overconfident judge: the true log-odds are 0.3 times its own."""
    return label(tmp_path, lambda p, place, n: (place * 6 + n) * 0.618034 % 1 < p**0.3 / (p**0.3 + (1 - p) ** 0.3))


def verdicts_of(tmp_path: Path, engine: str = "scripted://hash") -> Result:
    """Score a response without labels."""
    return adjudge("score", written(tmp_path / "one.jsonl", GROUP), "--engine", engine, "--jsonl")


def test_a_service_applies_the_version_that_the_settings_name(
    labelled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = adjudge("calibrate", "scripted://hash", labelled, "--name", "team", "--method", "platt", exit_code=0)
    assert "stored team@1" in stored.stdout
    assert (
        "unchanged: team@1"
        in adjudge("calibrate", "scripted://hash", labelled, "--name", "team", "--method", "platt").stdout
    )
    shown = json.loads(adjudge("calibrations", "show", "team").stdout)
    assert shown["measured"]["brier"]["n"] > 50
    adjudge("calibrations", "alias", "team", "live", "1", exit_code=0)
    assert "live" in adjudge("calibrations").stdout

    def probabilities(result: Result) -> list[tuple[float, float]]:
        (answer,) = [json.loads(line) for line in result.stdout.splitlines()]
        return [(v["raw_probability"], v["probability"]) for v in answer["responses"][0]["verdicts"]]

    before = probabilities(verdicts_of(tmp_path))
    assert all(raw == calibrated for raw, calibrated in before)
    monkeypatch.setenv("ADJUDGE_CALIBRATIONS", "team@live")
    after = probabilities(verdicts_of(tmp_path))
    assert [raw for raw, _ in after] == [raw for raw, _ in before]
    assert all(abs(calibrated - 0.5) < abs(raw - 0.5) for raw, calibrated in after if abs(raw - 0.5) > 0.2)


def test_a_calibration_is_refused_once_the_judge_has_changed(
    labelled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adjudge("calibrate", "scripted://hash", labelled, "--name", "team", exit_code=0)
    monkeypatch.setenv("ADJUDGE_CALIBRATIONS", "team")
    monkeypatch.setenv("ADJUDGE_MIN_CHOICE_MASS", "0.03")  # part of the judge's fingerprint
    refused = verdicts_of(tmp_path)
    assert refused.exit_code == 1
    assert "the calibration team@1 does not hold for" in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    "command",
    [
        ("calibrate", "none.jsonl", "--judge", "scripted://yes"),
        ("cascade", "scripted://yes", "scripted://hash", "none.jsonl"),
        ("panel", "none.jsonl", "--judge", "scripted://yes", "--judge", "scripted://hash"),
    ],
)
def test_a_name_that_cannot_be_stored_is_refused_before_anything_is_read(command: tuple[str, ...]) -> None:
    assert "'Two words' cannot name a calibration" in failure_of(adjudge(*command, "--name", "Two words"))


def test_a_missing_calibration_prevents_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADJUDGE_CALIBRATIONS", "none@live")
    result = verdicts_of(tmp_path)
    assert result.exit_code == 1
    assert "there is no calibration none@live" in " ".join(result.stderr.split())


def test_references_are_listed_for_the_default_judge_or_by_judge() -> None:
    assert references_by_judge(" a@live b ") == {"default": ["a@live", "b"]}
    assert references_by_judge('{"large": "a@1"}') == {"large": ["a@1"]}
    assert references_by_judge(None) == {}
    with pytest.raises(ValueError, match="not a JSON object of judges"):
        references_by_judge('{"large": 3}')


def test_a_calibration_that_makes_other_rows_worse_is_not_stored(tmp_path: Path) -> None:
    """The judge does not know, and each row's labels are opposed to those of most others."""
    unsure = [
        json.loads(line) for line in Path(label(tmp_path, lambda p, place, n: 0.4 < p < 0.6)).read_text().splitlines()
    ]
    rows = []
    for row in unsure:
        labels = {name: len(rows) % 2 == 0 for name, met in row["labels"][0].items() if met}
        rows += [row | {"labels": [labels]}] if labels and len(rows) < 10 else []
    file = written(tmp_path / "unsure.jsonl", *rows)
    refused = adjudge("calibrate", "scripted://hash", file, "--name", "team")
    assert "makes the Brier score worse" in failure_of(refused)
    assert "do not show that the judge tells met from unmet" in " ".join(refused.stdout.split())
    assert "No calibration is stored yet" in adjudge("calibrations").stdout


def test_a_dozen_labels_are_enough_to_begin(labelled: str, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in Path(labelled).read_text().splitlines()[:2]]
    stored = adjudge(
        "calibrate", "scripted://hash", written(tmp_path / "few.jsonl", *rows), "--name", "few", exit_code=0
    )
    assert "12 verdicts of 2 rows" in stored.stdout
    one = adjudge("calibrate", "scripted://hash", written(tmp_path / "one.jsonl", *rows[:1]), "--name", "few")
    assert "too few to fit on; give at least 8" in failure_of(one)


def test_a_promised_error_sets_the_band(tmp_path: Path) -> None:
    """The judge is right about what it is sure of, and at chance between 0.3 and 0.7."""
    sure = label(
        tmp_path,
        lambda p, place, n: p >= 0.5 if abs(p - 0.5) > 0.2 else (place * 6 + n) * 0.618034 % 1 < 0.5,
    )
    asked = ("calibrate", "scripted://hash", sure, "--name", "team")
    result = adjudge(*asked, "--error", "0.1", exit_code=0)
    assert "at most 10% are wrong, with 95% confidence" in " ".join(result.stdout.split())
    low, high = json.loads(adjudge("calibrations", "show", "team").stdout)["calibration"]["uncertain_band"]
    assert 0 < low < 0.5 < high < 1
    assert "leave out --uncertain-band" in failure_of(
        adjudge(*asked, "--error", "0.1", "--uncertain-band", "0.4", "0.6")
    )
    assert "too few to promise that at most 1.5%" in failure_of(adjudge(*asked, "--error", "0.015"))


def test_a_calibrations_band_makes_verdicts_uncertain_and_excludes_them_from_rates(
    labelled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("calibrate", "scripted://hash", labelled, "--name", "team", "--method", "platt")
    assert "write the lower end first" in failure_of(adjudge(*asked, "--uncertain-band", "0.6", "0.4"))
    adjudge(*asked, "--uncertain-band", "0.4", "0.6", exit_code=0)
    stored = json.loads(adjudge("calibrations", "show", "team").stdout)
    assert stored["calibration"]["uncertain_band"] == [0.4, 0.6]
    counted = [stored["measured"][rate]["labels"] for rate in ("sensitivity", "specificity")]
    assert 0 < sum(counted) < stored["measured"]["brier"]["n"]

    monkeypatch.setenv("ADJUDGE_CALIBRATIONS", "team")
    (answer,) = [json.loads(line) for line in verdicts_of(tmp_path).stdout.splitlines()]
    verdicts = answer["responses"][0]["verdicts"]
    assert {v["status"] for v in verdicts} == {"ok", "uncertain"}
    for v in verdicts:
        assert (v["status"] == "uncertain") == (0.4 <= v["probability"] < 0.6) == (v["score"] is None)

    measured = adjudge("evaluate", "scripted://hash", labelled, "--json", exit_code=0)
    report = json.loads(measured.stdout)
    overall = report["agreement"][0]
    assert overall["failed"] == 0
    assert overall["uncertain"] > 0
    assert overall["n"] + overall["uncertain"] == GROUPS * len(CRITERIA)
    assert sum(one["n"] for one in report["reliability"]) == overall["n"]
    assert sum(rate["labels"] for rate in report["judge_error"].values()) == overall["n"]
    assert "uncertain" in adjudge("evaluate", "scripted://hash", labelled).stdout


def test_columns_that_are_not_read_are_named_once(labelled: str, tmp_path: Path) -> None:
    rows = [json.loads(line) | {"source": "web"} for line in Path(labelled).read_text().splitlines()]
    file = written(tmp_path / "more.jsonl", *rows)
    result = adjudge("calibrate", file, "--judge", "scripted://hash", "--name", "team", "--dry-run")
    assert result.stderr.count("not read: source") == 1
