"""`adjudge judges sleep`, `wake` and `weights` at a running service, and the client's methods."""

import json
from pathlib import Path

import pytest

from tests.services.command import adjudge, failure_of
from tests.services.processes import Service
from trainer_client import Client, InvalidRequest, WeightsChanged

CONTROL = {
    "groups": [{"id": "q", "prompt": "Say yes.", "responses": ["Yes.", "No."]}],
    "rubric": {"criteria": [{"id": "yes", "description": "Says yes."}]},
}


def test_a_judge_is_put_to_sleep_and_woken_by_commands(shared_service: Service) -> None:
    url = ("--url", shared_service.url)
    assert adjudge("judges", "sleep", "--owner", "ops", *url).stdout == "default is asleep\n"
    assert adjudge("judges", "wake", "--owner", "ops", *url).stdout == "default is awake, kept awake by ops\n"
    with Client(shared_service.url) as client:
        client.wake_judge("ops", lease_s=0.1)


def test_the_weights_of_a_judge_are_changed_and_shown_by_the_command(shared_service: Service, tmp_path: Path) -> None:
    url = ("--url", shared_service.url)
    control = tmp_path / "control.json"
    control.write_text(json.dumps(CONTROL))
    changed = adjudge("judges", "weights", "--version", "v1", "--step", "7", "--control", str(control), *url).stdout
    assert changed.startswith("default has v1: scripted, step 7, tag ")
    assert "0.0% of 2 verdicts changed; probabilities moved by +0.000 on average" in changed
    assert adjudge("judges", "weights", *url).stdout == changed


def test_the_commands_say_what_is_wrong(shared_service: Service, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    for wrong, says in (
        (("sleep", "other"), "no judge 'other'"),
        (("wake", "--lease-s", "0"), "lease_s"),
        (("weights", "other"), "no judge 'other'"),
        (("weights", "--adapter", "a"), "--version"),
        (("weights", "--version", "v", "--adapter", "a"), "ADJUDGE_ADAPTERS_DIR"),
        (("weights", "--version", "v", "--expected", "0000"), "somebody else has changed them"),
        (("weights", "--version", "v", "--control", str(tmp_path / "bad.json")), "groups"),
    ):
        assert says in failure_of(adjudge("judges", *wrong, "--url", shared_service.url))


def test_the_client_names_the_weights_that_it_expects(shared_service: Service) -> None:
    with Client(shared_service.url) as client:
        first = client.load_judge_weights("c1", step=1, expected=client.judge_weights().tag)
        assert client.judge_weights() == first
        with pytest.raises(WeightsChanged):
            client.load_judge_weights("c2", expected="0000")
        with pytest.raises(InvalidRequest, match="keeps its weights"):
            client.load_judge_weights("c2", "missing")
        with pytest.raises(InvalidRequest, match="cannot name a judge"):
            client.judge_weights("A B")
