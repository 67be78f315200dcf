"""`adjudge probe`: fit a probe to a real model's states, judge with it, and be told what it cannot do."""

import json
from pathlib import Path
from typing import Any

import pytest

from judge_server.models.downloads import fetch
from tests.services.command import adjudge, failure_of

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("migrated")]

MODEL = "smollm2-135m"
JUDGE = f"llamacpp://{MODEL}?context=1024&threads=1"
ANIMALS = ("cat", "kitten", "tiger", "lion")
MACHINES = ("car", "train", "truck", "crane")
CRITERION = {"id": "animal", "description": "Is about an animal."}
PROGRAM = {
    "id": "named",
    "description": "Says there.",
    "verification": {"method": "contains", "any_of": ["over there"]},
}


def row(name: str, place: int) -> dict[str, Any]:
    """A labelled response about one thing."""
    return {
        "id": f"{name}-{place}",
        "prompt": "What do you see?",
        "responses": [f"There is a {name} over {['here', 'there', 'the hill'][place % 3]}, I think."],
        "rubric": {"criteria": [CRITERION, PROGRAM]},
        "labels": [{"animal": name in ANIMALS, "named": place % 3 == 1}],
    }


def written(file: Path, *rows: Any) -> str:
    """Write JSONL."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.fixture
def labelled(tmp_path: Path) -> str:
    """Sixteen labelled responses, three of four things of each kind."""
    names = [*ANIMALS[:3], *MACHINES[:3]]
    return written(tmp_path / "labelled.jsonl", *[row(name, place) for place, name in enumerate(3 * names)])


def test_a_probe_is_fitted_to_labels_written_and_judges_by_itself(labelled: str, tmp_path: Path) -> None:
    fetch(MODEL)
    file = tmp_path / "animal.gguf"
    fitted = adjudge("probe", "fit", labelled, "--judge", JUDGE, "--output", str(file), exit_code=0)
    assert f"llamacpp://{file}" in fitted.stdout
    about = json.loads(adjudge("probe", "show", str(file), exit_code=0).stdout)
    assert (about["judge"], about["labels"], about["rows"]) == (MODEL, 18, 18)
    assert about["measured"]["probe"]["auroc"]["value"] > 0.8

    unseen = [row(name, place) for place, name in enumerate((ANIMALS[3], MACHINES[3]))]
    groups = written(tmp_path / "unseen.jsonl", *[{k: v for k, v in one.items() if k != "labels"} for one in unseen])
    scored = adjudge("score", groups, "--engine", f"llamacpp://{file}?threads=1", "--jsonl", exit_code=0)
    lines = [json.loads(line) for line in scored.stdout.splitlines()]
    found = [{v["criterion"]: v for v in line["responses"][0]["verdicts"]} for line in lines]
    assert found[0]["animal"]["probability"] > found[1]["animal"]["probability"] + 0.2
    assert [one["named"]["score"] for one in found] == [0.0, 1.0]

    refused = adjudge("score", groups, "--engine", f"llamacpp://{file}?threads=1", "--protocol", "graded")
    assert refused.exit_code != 0
    assert "is a probe: it answers one question" in " ".join(failure_of(refused).split())


def test_a_probe_that_learns_nothing_is_not_written(tmp_path: Path) -> None:
    fetch(MODEL)
    rows = [row(name, place) for place, name in enumerate(3 * [*ANIMALS[:3], *MACHINES[:3]])]
    for place, one in enumerate(rows):
        one["labels"] = [{"animal": place * 7 % 10 < 5}]
    file = tmp_path / "nothing.gguf"
    refused = adjudge("probe", "fit", written(tmp_path / "noise.jsonl", *rows), "--judge", JUDGE, "-o", str(file))
    assert "no better than that of calibrated words; not written" in failure_of(refused)
    assert not file.exists()


def test_what_cannot_be_fitted_is_refused_before_anything_is_judged(labelled: str, tmp_path: Path) -> None:
    file = str(tmp_path / "probe.gguf")
    for arguments, said in (
        (["--judge", "scripted://hash", "-o", file], "a probe is fitted to a llama.cpp judge"),
        (["--judge", "team", "-o", file], "give one engine URL"),
        (["--judge", f"{JUDGE}&lora=/a.gguf", "-o", file], "leave out ?lora="),
        (["--judge", JUDGE, "-o", str(tmp_path / "probe.bin")], "ending in .gguf"),
        (["--judge", JUDGE, "-o", str(tmp_path / "absent" / "probe.gguf")], "in a folder that exists"),
        (["--judge", JUDGE, "-o", str(fetch(MODEL))], "exists and is not a probe"),
    ):
        refused = adjudge("probe", "fit", labelled, *arguments)
        assert refused.exit_code != 0
        assert said in " ".join(failure_of(refused).split())


def test_too_few_labels_and_layers_that_the_model_lacks_are_refused(labelled: str, tmp_path: Path) -> None:
    fetch(MODEL)
    file = tmp_path / "probe.gguf"
    rows = [row(name, place) | {"id": "same"} for place, name in enumerate(6 * ANIMALS)]
    alike = adjudge("probe", "fit", written(tmp_path / "alike.jsonl", *rows), "--judge", JUDGE, "-o", str(file))
    assert "one row" in failure_of(alike)
    few = adjudge("probe", "fit", labelled, "--judge", JUDGE, "-o", str(file), "--limit", "6")
    assert "12 labels" in failure_of(few)
    high = adjudge("probe", "fit", labelled, "--judge", JUDGE, "-o", str(file), "--layer", "31")
    assert "has 30 layers" in failure_of(high)
    assert list(tmp_path.glob("*.gguf*")) == []
    plain = adjudge("probe", "show", labelled)
    assert plain.exit_code != 0
