"""Responses and ground truths as people and models write them, from the response to the reward.

Each row of `answers.jsonl` is a group whose responses must all get the reward `want`; its id names the class that it
stands for.
"""

import json
from pathlib import Path

import pytest

from judge_server.verifiers.worker import decide
from tests.judge_server.verifiers.checks import check

ROWS = [json.loads(line) for line in (Path(__file__).parent / "answers.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_every_response_gets_the_reward_that_it_deserves(row):
    method = row["rubric"]["criteria"][0]["verification"]["method"]
    found = {text: decide(check(method, text, ground_truth=row["ground_truth"])) for text in row["responses"]}
    assert {text: outcome.score for text, outcome in found.items()} == dict.fromkeys(row["responses"], row["want"])
