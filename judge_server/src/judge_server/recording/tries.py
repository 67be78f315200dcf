"""Which tries of a chunk of an operation are recorded: those whose answer the operation keeps.

So the ledger has each group once, as its result has it, however often it was asked for; docs/ledger.md has exceptions.
"""

from judge_server.judging.votes import combine_votes
from judge_server.ports import CallFailure
from judge_server.recording.entry import JudgedRequest, RecordSink

TRANSIENT_FAILURES = frozenset({"timeout", "engine", "overloaded"})
"""Kinds of failed verdicts that another attempt may mend."""


class AttemptRecorder:
    """Hands on what is judged for a chunk, unless the chunk got no answer, or will be asked for `again`."""

    def __init__(self, records: RecordSink, *, will_retry: bool) -> None:
        self._records = records
        self._will_retry = will_retry

    def record(self, judged: JudgedRequest) -> None:
        """Take a judged request over."""
        was_answered = judged.mode is None or bool(judged.rewards)
        if was_answered and not (self._will_retry and _has_transient_failure(judged)):
            self._records.record(judged)


def _has_transient_failure(judged: JudgedRequest) -> bool:
    """Whether a verdict failed that another attempt may mend."""
    plans = [response.plan for group in judged.groups for response in group.responses]
    verdicts = [
        combine_votes([judged.outcomes.by_digest[d] for d in slot.digests]) for plan in plans for slot in plan.slots
    ]
    return any(isinstance(verdict, CallFailure) and verdict.kind in TRANSIENT_FAILURES for verdict in verdicts)
