"""Operations of a soak: submitted at regular intervals, followed by their events, and read at the end."""

import json
import threading
import time
from typing import Any, NamedTuple

from benchmarks.soak.background import Background
from benchmarks.soak.workload import RUBRIC, bulk_subjects, group_of
from trainer_client import AdjudgeError, Client
from trainer_client.wire.operations import Operation

_PATIENCE_S = 120.0
_LAST_EVENT_S = 20.0


class SubmittedOperation(NamedTuple):
    """An accepted operation, the revisions in its events, and errors that ended the events early."""

    id: str
    subjects: list[int]
    seen: list[int]
    broke: list[str]


class FinishedOperation(NamedTuple):
    """An operation and its results, after it ended or the wait for it timed out."""

    submitted: SubmittedOperation
    operation: Operation
    results: list[dict[str, Any]]


class Bulk(Background):
    """Submits an operation with `groups` groups every `interval_s` seconds until it is stopped."""

    def __init__(self, url: str, groups: int, interval_s: float) -> None:
        self.submitted: list[SubmittedOperation] = []
        self.refused: list[str] = []
        self._client = Client(url, run="bulk", retries=30, retry_budget_s=_PATIENCE_S)
        self._groups = groups
        self._followers: list[threading.Thread] = []
        self._number = 0
        super().__init__("bulk", interval_s)

    def close(self) -> None:
        """Stop submitting and close the connections."""
        self._stopped.set()
        self._client.close()

    def ended(self, within_s: float) -> list[FinishedOperation]:
        """Wait until all operations have ended, at most `within_s` seconds, and return them with their results."""
        until = time.monotonic() + within_s
        finished = []
        for submitted in self.submitted:
            operation = self._client.operation(submitted.id)
            while not operation.ended and time.monotonic() < until:
                time.sleep(0.5)
                operation = self._client.operation(submitted.id)
            finished.append(FinishedOperation(submitted, operation, list(self._client.operation_results(submitted.id))))
        for follower in self._followers:
            follower.join(max(_LAST_EVENT_S, until - time.monotonic()))
        return finished

    def _act(self) -> None:
        self._number += 1
        subjects = bulk_subjects(self._number, self._groups)
        lines = "\n".join(json.dumps(group_of(subject)) for subject in subjects)
        try:
            accepted = self._client.submit({"kind": "score", "run": "bulk", "rubric": RUBRIC, "groups": lines})
        except AdjudgeError as error:
            self.refused.append(f"{type(error).__name__}: {error}")
        else:
            self._follow(SubmittedOperation(accepted.id, subjects, [], []))

    def _follow(self, submitted: SubmittedOperation) -> None:
        def follow() -> None:
            try:
                submitted.seen.extend(operation.revision for operation in self._client.follow(submitted.id))
            except AdjudgeError as error:
                submitted.broke.append(f"{type(error).__name__}: {error}")

        self.submitted.append(submitted)
        self._followers.append(threading.Thread(target=follow, name=submitted.id, daemon=True))
        self._followers[-1].start()
