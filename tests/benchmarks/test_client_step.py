"""The client's cost per step: the benchmark runs, and its parts add up."""

import json
from pathlib import Path

import pytest

pytest.importorskip("trl")

from benchmarks import client_step

pytestmark = [pytest.mark.trl, pytest.mark.slow]


def test_it_runs_and_the_total_is_the_sum_of_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.report.FOLDER", tmp_path)
    client_step.main(["--prompts", "2", "--group", "2", "--tokens", "200", "--criteria", "4", "--repeats", "1"])
    document = json.loads((tmp_path / "client_step.json").read_text())
    medians = {row["part"]: row["ms: median"] for row in document["rows"]}
    assert medians["whole step"] == pytest.approx(sum(medians[name] for name in client_step.TOTAL))
    changed = medians[client_step.CALL_ALONE] + medians[client_step.PLACED] - medians["RubricReward"]
    assert medians[client_step.BEFORE] == pytest.approx(medians["whole step"] + changed)
    assert all(row["min"] <= row["ms: median"] <= row["max"] for row in document["rows"])
    assert "2 prompts x 2 responses of 200 tokens x 4 criteria" in capsys.readouterr().out
