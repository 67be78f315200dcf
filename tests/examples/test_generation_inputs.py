"""The inputs in `examples/generation/`: what each generator takes, and as many as its README says."""

import json
import re
from pathlib import Path

import pytest

from judge_server.generation.kinds import GENERATORS
from judge_server.generation.kinds import generator_of as generator

FOLDER = Path(__file__).parent.parent.parent / "examples" / "generation"
README = (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", GENERATORS)
def test_every_line_is_an_input_of_its_own(kind: str) -> None:
    rows = [
        GENERATORS[kind].Input.model_validate_json(line)
        for line in (FOLDER / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert len({row.canonical for row in rows}) == len({row.id for row in rows}) == len(rows) >= 20
    assert f"[{kind}.jsonl]({kind}.jsonl) | {len(rows)} |" in README


def test_evolving_revises_the_rubrics_that_graded_makes() -> None:
    graded, evolving = (
        [json.loads(line) for line in (FOLDER / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()]
        for kind in ("graded", "evolving")
    )
    assert [row["name"] for row in graded] == [row["rubric"] for row in evolving]
    assert [row["question"] for row in graded] == [row["question"] for row in evolving]


@pytest.mark.parametrize("file", ["gsm8k.jsonl", "srar.jsonl"])
def test_groups_to_be_scored_are_inputs_too(file: str) -> None:
    made = generator("contrastive", {})
    for line in (FOLDER.parent / file).read_text(encoding="utf-8").splitlines():
        group = json.loads(line)
        assert made.Input.model_validate(group).solutions == tuple(text.strip() for text in group["responses"])


def test_every_kind_of_id_has_its_source_named() -> None:
    ids = {
        json.loads(line)["id"].partition("-")[0]
        for file in FOLDER.glob("*.jsonl")
        for line in file.read_text(encoding="utf-8").splitlines()
    }
    assert ids == set(re.findall(r"`?\b(\w+)-…", README))
