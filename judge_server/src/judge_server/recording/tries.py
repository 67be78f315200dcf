"""Which tries of a chunk of an operation are recorded: those whose answer the operation keeps.

So the ledger has each group once, as its result has it, however often it was asked for; docs/ledger.md has exceptions.
"""

from judge_server.judging.votes import combine_votes
from judge_server.ports import CallFailed
from judge_server.recording.entry import Judged, Records

PASSING = frozenset({"timeout", "engine", "overloaded"})
"""Kinds of failed verdicts that another attempt may mend."""


class Tries:
    """Hands on what is judged for a chunk, unless the chunk got no answer, or will be asked for `again`."""

    def __init__(self, records: Records, *, again: bool) -> None:
        self._records = records
        self._again = again

    def record(self, judged: Judged) -> None:
        """Take a judged request over."""
        answered = judged.mode is None or bool(judged.rewards)
        if answered and not (self._again and _may_pass(judged)):
            self._records.record(judged)


def _may_pass(judged: Judged) -> bool:
    """Whether a verdict failed that another attempt may mend."""
    plans = [response.plan for group in judged.groups for response in group.responses]
    verdicts = [combine_votes([judged.outcomes.of[d] for d in slot.digests]) for plan in plans for slot in plan.slots]
    return any(isinstance(verdict, CallFailed) and verdict.kind in PASSING for verdict in verdicts)
