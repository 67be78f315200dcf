"""The inputs in `examples/generation/`: valid for each generator, and as many as the README states."""

import json
import re
from pathlib import Path

import pytest

from judge_server.generation.kinds import GENERATORS

FOLDER = Path(__file__).parent.parent.parent / "examples" / "generation"
README = (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", GENERATORS)
def test_every_line_is_a_distinct_input(kind: str) -> None:
    rows = [
        GENERATORS[kind].Input.model_validate_json(line)
        for line in (FOLDER / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert len({row.canonical for row in rows}) == len({row.id for row in rows}) == len(rows) >= 20
    assert f"[{kind}.jsonl]({kind}.jsonl) | {len(rows)} |" in README


def test_the_evolving_inputs_revise_the_rubrics_of_the_graded_ones() -> None:
    graded, evolving = (
        [json.loads(line) for line in (FOLDER / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()]
        for kind in ("graded", "evolving")
    )
    assert [row["name"] for row in graded] == [row["rubric"] for row in evolving]
    assert [row["question"] for row in graded] == [row["question"] for row in evolving]


@pytest.mark.parametrize("file", ["gsm8k.jsonl", "srar.jsonl"])
def test_groups_for_scoring_are_valid_inputs_too(file: str) -> None:
    for line in (FOLDER.parent / file).read_text(encoding="utf-8").splitlines():
        group = json.loads(line)
        assert GENERATORS["contrastive"].Input.model_validate(group).solutions == tuple(
            text.strip() for text in group["responses"]
        )


def test_the_readme_names_the_source_of_every_kind_of_id() -> None:
    ids = {
        json.loads(line)["id"].partition("-")[0]
        for file in FOLDER.glob("*.jsonl")
        for line in file.read_text(encoding="utf-8").splitlines()
    }
    assert ids == set(re.findall(r"`?\b(\w+)-…", README))
