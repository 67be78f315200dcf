"""`RubricScorer`: rewards as columns of a table."""

import json
import time
from typing import Any

import pyarrow
import pytest

from tests.services.processes import Service, get
from trainer_client import Client, ConnectionFailed
from trainer_client.ray import RubricScorer

RUBRIC = [{"id": "a", "description": "Is right."}, {"id": "b", "description": "Is brief.", "weight": 3}]
ROWS = [{"prompt": f"Is {n} prime?", "response": answer, "n": n} for n in range(5) for answer in ("yes", "no")]

pytestmark = pytest.mark.processes


@pytest.fixture
def ready(service: Service) -> Service:
    with Client(service.url) as client:
        service.wait_until_ready(client)
    return service


def scorer(service: Service, **options: Any) -> RubricScorer:
    return RubricScorer(RUBRIC, **({"url": service.url, "run": "ray"} | options))


def table(rows: list[dict[str, Any]]) -> pyarrow.Table:
    names = dict.fromkeys(name for row in rows for name in row)
    return pyarrow.table({name: [row.get(name) for row in rows] for name in names})


def test_a_row_with_a_response_gets_its_reward_and_keeps_its_columns(ready: Service) -> None:
    scored = scorer(ready, groups_per_request=3)(table(ROWS)).to_pylist()
    assert [(row["prompt"], row["response"], row["n"]) for row in scored] == [tuple(row.values()) for row in ROWS]
    assert {row["status"] for row in scored} == {"scored"}
    for row in scored:
        verdicts = json.loads(row["verdicts"])
        weights = {"a": 1, "b": 3}
        assert row["reward"] == pytest.approx(sum(weights[v["criterion"]] * v["score"] for v in verdicts) / 4)
        assert row["failure"] is None


def test_a_row_with_responses_gets_a_list(ready: Service) -> None:
    rows = [{"question": "Is 7 prime?", "answers": ["yes", "no"]}, {"question": "Is 8?", "answers": ["no"]}]
    columns = {"prompt": "question", "responses": "answers"}
    scored = scorer(ready, columns=columns, prefix="judge_")(table(rows)).to_pylist()
    assert [len(row["judge_rewards"]) for row in scored] == [2, 1]
    assert [row["judge_statuses"] for row in scored] == [["scored"] * 2, ["scored"]]


def test_numbers_are_accepted_as_ids_and_ground_truths(ready: Service) -> None:
    rows = [{"id": 7, "prompt": "What is 3 + 4?", "response": "7", "ground_truth": 7.0}]
    assert scorer(ready)(table(rows))["status"].to_pylist() == ["scored"]


def test_a_bad_row_is_refused_with_a_warning_and_the_others_are_scored(
    ready: Service, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [*ROWS[:3], {"prompt": "?", "response": "x", "rubric": "no/such"}, {"prompt": None, "response": "y"}]
    scored = scorer(ready)(table(rows)).to_pylist()
    assert [row["status"] for row in scored] == ["scored"] * 3 + ["refused"] * 2
    assert [row["reward"] is None for row in scored] == [False] * 3 + [True] * 2
    assert "no/such" in scored[3]["failure"]
    assert scored[4]["failure"].startswith("prompt")
    assert "2 of 5 rows were refused" in caplog.text


def test_a_repeated_batch_is_recorded_once(ready: Service) -> None:
    first, second = scorer(ready), scorer(ready)
    once, again = first(table(ROWS)), second(table(ROWS))
    assert once["reward"] == again["reward"]
    while (state := get(ready, "/v1/ledger").json())["waiting"] or not state["recorded"]:
        time.sleep(0.02)
    with Client(ready.url) as client:
        assert client.run_report("ray").run.responses == len(ROWS)


def test_an_unreachable_service_ends_the_job(ready: Service) -> None:
    ready.stop()
    with pytest.raises(ConnectionFailed):
        scorer(ready, client={"retries": 0})(table(ROWS))


def test_an_invalid_batch_is_refused_with_advice(ready: Service) -> None:
    with pytest.raises(TypeError, match="batch_format"):
        scorer(ready)({"prompt": ["?"]})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="columns="):
        scorer(ready)(table([{"prompt": "?"}]))
    with pytest.raises(ValueError, match="prefix"):
        scorer(ready)(table([{"prompt": "?", "response": "x", "reward": 1.0}]))
