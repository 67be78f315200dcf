"""What became of a run's inputs so far, what it cost, and how long the rest will take."""

from collections import Counter
from dataclasses import dataclass, field

from judge_server.generation.writer import WriterUsage
from trainer_client.wire.operations import OperationProgress


@dataclass(slots=True)
class RunCounts:
    """Counts of a run.

    Attributes:
        total: the distinct inputs of the run.
        known: those that an earlier run had done.
        made: rubrics of this run and of earlier ones, for this run's inputs.
        added: versions that were added to the store by this run.
        unpublished: rubrics that the store does not take.
        discarded: why inputs gave no rubric, this run's and earlier ones'.
        failed: inputs that an engine's failure left undone.
        refused: lines that are no input.
        repeated: lines with the content of an earlier line.
        usage: what the writer used in this run.
        seconds: how long this run has been at it.
    """

    total: int = 0
    known: int = 0
    made: int = 0
    added: int = 0
    unpublished: int = 0
    discarded: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    refused: int = 0
    repeated: int = 0
    usage: WriterUsage = field(default_factory=WriterUsage)
    seconds: float = 0.0

    @property
    def done(self) -> int:
        """Inputs that need no more work in this run."""
        return self.made + self.discarded.total() + self.failed

    def progress(self) -> OperationProgress:
        """The same for whoever waits."""
        worked = self.done - self.known
        rate = worked / self.seconds if worked and self.seconds > 0 else None
        return OperationProgress(
            done=self.done,
            total=self.total,
            known=self.known,
            made=self.made,
            added=self.added,
            unpublished=self.unpublished,
            discarded=dict(self.discarded.most_common()),
            failed=self.failed,
            refused=self.refused,
            repeated=self.repeated,
            calls=self.usage.calls,
            tokens_computed=self.usage.tokens_computed,
            tokens_reused=self.usage.tokens_reused,
            tokens_written=self.usage.tokens_written,
            seconds=self.seconds,
            rate=rate,
            eta_s=(self.total - self.done) / rate if rate else None,
        )
