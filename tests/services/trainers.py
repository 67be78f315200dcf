"""Trainers that score in a background loop and record the answers; every request has new texts."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from trainer_client import Client
from trainer_client.wire import RewardAnswer

CRITERIA = [
    {"id": "short", "description": "Is short.", "weight": 3},
    {"id": "right", "description": "Is right."},
    {"id": "kind", "description": "Is kind.", "weight": 2},
]
RESPONSES = 4
USES = RESPONSES * len(CRITERIA)
"""The ledger uses of one request."""

Rewards = dict[str, list[float | None]]


class Trainer(threading.Thread):
    """Scores one group after another in its client's run; every fifth under a rubric that it publishes first."""

    def __init__(self, client: Client) -> None:
        super().__init__(name=client.run)
        self.client = client
        self.answers: list[RewardAnswer] = []
        self.problem: Exception | None = None
        self._more = threading.Condition()
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            for number in itertools.count():
                if self._stopped.is_set():
                    return
                answer = self._score(number)
                with self._more:
                    self.answers.append(answer)
                    self._more.notify_all()
        except Exception as error:  # noqa: BLE001 - the test reports it
            self.problem = error
            with self._more:
                self._more.notify_all()

    def _score(self, number: int) -> RewardAnswer:
        rubric: str | dict[str, object] = {"criteria": CRITERIA}
        if number % 5 == 4:
            rubric = self.client.publish_rubric(f"{self.name}/r{number % 3}", _criteria(number)).reference
        return self.client.rewards([group(self.name, number)], rubric, "points", step=number)

    def wait_for_more(self, count: int) -> None:
        """Wait until it has scored this many more."""
        with self._more:
            wanted = len(self.answers) + count
            assert self._more.wait_for(lambda: len(self.answers) >= wanted or self.problem is not None, 120)
        assert self.problem is None, self.problem

    def stop(self) -> None:
        """Stop after the current request."""
        self._stopped.set()
        self.join(120)
        assert not self.is_alive()
        assert self.problem is None, self.problem

    def rewards(self) -> Rewards:
        """Return the rewards received, by request."""
        return {
            answer.request_id: [response.reward for response in answer.groups[0].responses] for answer in self.answers
        }


def group(run: str, number: int) -> dict[str, object]:
    """Return the group that a run scores at a step."""
    return {"id": f"g{number}", "prompt": "?", "responses": [f"{run}, {number}, {n}." for n in range(RESPONSES)]}


def _criteria(number: int) -> list[dict[str, object]]:
    return [*CRITERIA[:2], {"id": "kind", "description": f"Is kind to {number}.", "weight": 2}]


@contextmanager
def training(*trainers: Trainer) -> Iterator[None]:
    """Run the trainers for the duration of the block."""
    for trainer in trainers:
        trainer.start()
    try:
        yield
    finally:
        for trainer in trainers:
            trainer.stop()


def expected(trainer: Trainer, client: Client) -> list[list[float | None]]:
    """Return the rewards that an undisturbed service gives the same groups, in order."""
    found = []
    for number in range(len(trainer.answers)):
        criteria = _criteria(number) if number % 5 == 4 else CRITERIA
        answer = client.rewards([group(trainer.name, number)], {"criteria": criteria}, "points")
        found.append([response.reward for response in answer.groups[0].responses])
    return found
