"""Contributed bake-offs: the page shows the files, and a file that is none is refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.docs.bakeoffs import FOLDER, PAGE, InvalidBakeOff, read_bakeoff, tables, with_tables


@pytest.fixture
def file() -> dict[str, Any]:
    """The first file of the folder, as JSON."""
    found: dict[str, Any] = json.loads(min(FOLDER.iterdir()).read_bytes())
    return found


def written(folder: Path, content: Any, name: str = "mine.json") -> Path:
    """Write a file into a folder."""
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_the_page_shows_the_files() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_tables(page), "run python -m tests.docs.bakeoffs"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"contenders": []}, "contenders: Tuple should have at least 2 items"),
        ({"machine": None}, "machine: Input should be a valid string"),
        ({"measured": "yesterday"}, "measured: String should match pattern"),
        ({"data set": "a | b"}, "data set: String should match pattern"),
        ({"n": 0}, "contenders.0.n: Input should be greater than 0"),
        ({"fingerprint": "unknown"}, "contenders.0.fingerprint: String should match pattern"),
        ({"judge": "scripted://hash"}, "contenders.0.judge: Value error, a scripted judge is no model"),
        ({"quality": {"pairs_right": {}}}, "contenders.0.quality.balanced_accuracy: Field required"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_a_file_that_is_no_bake_off_of_real_judges_is_refused_with_the_place(
    file: dict[str, Any], tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    target = file if change.keys() <= file.keys() else file["contenders"][0]
    target |= change
    with pytest.raises(InvalidBakeOff) as refused:
        read_bakeoff(written(tmp_path, file))
    assert str(refused.value).startswith(f"mine.json: {says}")
    assert str(refused.value).endswith("--json")


@pytest.mark.parametrize("content", ["", "[]", "{", '{"rewards": 3}', "\x00", "mean 0.7"], ids=repr)
def test_a_foreign_file_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(InvalidBakeOff, match=r"mine\.json: .*adjudge bakeoff"):
        read_bakeoff(written(tmp_path, content))


def test_a_figure_outside_its_range_or_its_interval_is_refused(file: dict[str, Any], tmp_path: Path) -> None:
    auroc = file["contenders"][1]["quality"]["auroc"]
    wrong = {1.2: "less than or equal to 1", 0.0: "must be in this order", math.nan: "less than or equal to 1"}
    for value, says in wrong.items():
        auroc |= {"value": value, "low": 0.4, "high": max(0.9, value)}
        with pytest.raises(InvalidBakeOff, match=says):
            read_bakeoff(written(tmp_path, file))


def test_the_same_bake_off_counts_once(file: dict[str, Any], tmp_path: Path) -> None:
    written(tmp_path, file)
    assert tables(tmp_path).count("| judge |") == 1
    written(tmp_path, file, "yours.json")
    with pytest.raises(InvalidBakeOff, match=r"yours\.json: mine\.json holds the same bake-off"):
        tables(tmp_path)
