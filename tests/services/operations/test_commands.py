"""`adjudge operations` and `adjudge worker` on the command line."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.services.command import adjudge, failure_of
from tests.services.operations.cluster import CRITERIA, groups
from tests.services.processes import Service

OPTIONS = json.dumps({"rubric": {"criteria": CRITERIA}})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three groups."""
    path = tmp_path / "groups.jsonl"
    path.write_text("".join(json.dumps(group) + "\n" for group in groups(3)))
    return path


@pytest.fixture
def url(shared_service: Service, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a service, set in the environment."""
    monkeypatch.setenv("ADJUDGE_URL", shared_service.url)
    return shared_service.url


operations = partial(adjudge, "operations")


@pytest.mark.processes
def test_a_file_is_submitted_watched_and_listed_and_its_results_are_written(
    url: str, file: Path, tmp_path: Path
) -> None:
    submitted = operations("submit", "score", str(file), "--options", OPTIONS, "--run", "nightly", "--watch")
    assert submitted.exit_code == 0, submitted.output
    id_ = submitted.stdout.strip()
    assert f"{id_}: done, 3 of 3 done" in submitted.stderr
    listed = operations("list").stdout
    assert id_ in listed
    assert "3 of 3" in listed
    shown = json.loads(operations("show", id_).stdout)
    assert (shown["request"]["run"], shown["state"]) == ("nightly", "done")
    out = tmp_path / "results.jsonl"
    assert operations("results", id_, "--output", str(out)).exit_code == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(line["index"] for line in lines) == [0, 1, 2]
    assert operations("results", id_).stdout == out.read_text()
    assert operations("cancel", id_).stderr == operations("retry", id_).stderr == operations("watch", id_).stderr


@pytest.mark.processes
def test_a_failed_operation_gives_a_failing_exit_status(url: str, tmp_path: Path) -> None:
    inputs = tmp_path / "inputs.jsonl"
    inputs.write_text(json.dumps({"question": "Is 7 prime?", "ground_truth": "yes"}) + "\n")
    options = json.dumps({"generator": "contrastive"})
    submitted = operations("submit", "generate_rubrics", str(inputs), "--options", options, "--watch")
    assert submitted.exit_code == 1, submitted.output
    assert "ADJUDGE_WRITER_URL" in submitted.stderr


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("submit", "score", "--options", "{"), "--options is not JSON"),
        (("submit", "score", "--options", "[]"), "write a JSON object"),
        (("submit", "score"), "groups"),
        (("show", "op-1"), "there is no operation op-1"),
        (("show", "a/b"), "is not an operation id"),
    ],
)
def test_an_invalid_command_is_reported_in_one_line(url: str, arguments: tuple[str, ...], said: str) -> None:
    assert said in failure_of(operations(*arguments))


def test_an_unreachable_service_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_client.client.connection.INITIAL_BACKOFF_S", 0.0)
    result = operations("list", "--url", "http://127.0.0.1:9")
    assert (result.exit_code, "cannot reach http://127.0.0.1:9" in result.stderr) == (1, True)


def test_purging_reports_how_many_operations_expired() -> None:
    result = operations("purge")
    assert (result.exit_code, result.stdout.strip()) == (0, "deleted 0 expired operations")


def test_a_worker_needs_a_shared_queue() -> None:
    assert "set ADJUDGE_QUEUE_URL to redis://" in failure_of(adjudge("worker"))
