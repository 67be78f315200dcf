"""`adjudge judges sleep` and `wake` at a running service."""

from tests.services.command import adjudge, failure_of
from tests.services.processes import Service
from trainer_client import Client


def test_a_judge_is_put_to_sleep_and_woken_by_commands(shared_service: Service) -> None:
    url = ("--url", shared_service.url)
    assert adjudge("judges", "sleep", "--owner", "ops", *url).stdout == "default is asleep\n"
    assert adjudge("judges", "wake", "--owner", "ops", *url).stdout == "default is awake, kept awake by ops\n"
    with Client(shared_service.url) as client:
        client.wake_judge("ops", lease_s=0.1)


def test_commands_say_what_is_wrong_with_a_lease(shared_service: Service) -> None:
    for wrong, says in ((("sleep", "other"), "no judge 'other'"), (("wake", "--lease-s", "0"), "lease_s")):
        assert says in failure_of(adjudge("judges", *wrong, "--url", shared_service.url))
