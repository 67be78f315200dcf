"""Following an operation from a terminal: a bar with rate, tokens and time left, or a line now and then."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from adjudge_services.cli.output import err
from judge_server.ports.operations import Operations
from judge_server.rubrics import PROJECT_ID
from trainer_client.wire.operations import Operation, OperationProgress

_LINE_INTERVAL_S = 30.0


class ProgressDisplay:
    """Shows how far an operation is."""

    def __init__(self, operations: Operations, activity: str, made: str, bar: Progress, task: TaskID) -> None:
        self._operations = operations
        self._activity = activity
        self._made = made
        self._bar = bar
        self._task = task
        self._last_line_at = time.monotonic()

    async def follow(self, submitted: Operation) -> Operation:
        """The operation when it has ended."""
        operation = submitted
        async for operation in self._operations.events(PROJECT_ID, submitted.id):
            progress = operation.progress
            self._bar.update(
                self._task,
                description=self._activity,
                completed=progress.done,
                total=progress.total,
                about=_about(progress, self._made),
            )
            if self._bar.disable and time.monotonic() - self._last_line_at > _LINE_INTERVAL_S:
                self._last_line_at = time.monotonic()
                about = _about(progress, self._made)
                err.print(f"{progress.done} of {progress.total}  {about}", highlight=False, soft_wrap=True)
        return operation


@contextmanager
def show_progress(
    operations: Operations, activity: str = "generating", made: str = "made"
) -> Iterator[ProgressDisplay]:
    """A bar for as long as the block runs; lines instead where standard error is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[about]}"))
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("loading the model", total=None, about="")
        yield ProgressDisplay(operations, activity, made, bar, task)


def _about(progress: OperationProgress, made: str) -> str:
    parts = [f"{progress.made} {made}"]
    if progress.discarded:
        parts.append(f"{sum(progress.discarded.values())} discarded")
    if progress.failed:
        parts.append(f"{progress.failed} failed")
    if progress.rate:
        parts.append(f"{progress.rate:.2f}/s" if progress.rate >= 1 else f"{60 * progress.rate:.1f}/min")
    read = progress.tokens_computed + progress.tokens_reused
    parts.append(f"{read:,} tokens read, {progress.tokens_written:,} written")
    if progress.eta_s:
        parts.append(f"{duration(progress.eta_s)} left")
    return " · ".join(parts)


def duration(seconds: float) -> str:
    """Seconds as people say them: 42 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
