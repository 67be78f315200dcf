"""What can be run as an operation: a job that goes on from wherever an earlier attempt of it got to."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trainer_client.wire.operations import OperationProgress


class JobFailed(Exception):
    """A job that cannot go on, for a reason that its message tells whoever asked for it."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """One attempt at an operation.

    Attributes:
        request: what was asked for, as `Job.check` let it pass.
        folder: the operation's own, the same in every attempt.
        report: says how far it is.
    """

    operation_id: str
    project_id: str
    request: dict[str, Any]
    folder: Path
    report: Callable[[OperationProgress], None]


class Job(Protocol):
    """A kind of operation."""

    def check(self, request: dict[str, Any]) -> None:
        """Raises `ValueError` for a request that cannot be run."""

    def results_file(self, request: dict[str, Any], folder: Path) -> Path:
        """The file that results are appended to, a line of JSON each."""

    async def run(self, context: JobContext) -> None:
        """Do the work; cancelled at any moment, or killed, it must be able to go on in another attempt.

        What it raises fails the operation. `JobFailed`, `OSError` and `ValueError` explain themselves; all else is
        taken for a mistake in the program.
        """
