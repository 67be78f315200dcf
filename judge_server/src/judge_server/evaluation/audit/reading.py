"""What an audit reads of a run: the responses of its first and of its last steps, and the verdicts on them."""

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, TypeAlias

from judge_server.errors import unknown_run
from judge_server.evaluation.labelled import MET_FROM
from judge_server.ports import LedgerReader
from judge_server.scheduling.time_sharing import run_in_thread
from judge_server.scoring.recorded import recorded_verdict, response_pages
from rubric_store.ledger.rows import ResponseFilter, ResponseRow, RunReportQuery, UseRecord
from trainer_client.wire import Criterion

MAX_PART_VERDICTS = 25_000
"""About the most verdicts that an audit reads of each part of each run."""

_PAGE = 500
_STEPS_A_PAGE = 500

Steps: TypeAlias = tuple[int | None, int | None]
"""The first and the last step of a part; None for no limit."""


class AuditedVerdict(NamedTuple):
    """A recorded verdict on a criterion; `credited` is None if it failed or is uncertain."""

    slot: int
    credited: bool | None


class AuditedResponse(NamedTuple):
    """What an audit keeps of a judged response. `avoided` has the criteria that it should not meet."""

    row: ResponseRow
    step: int | None
    request_id: str
    mode: str | None
    verdicts: Mapping[str, AuditedVerdict]
    avoided: frozenset[str]

    @property
    def key(self) -> Hashable:
        """What names the response in every run that judged it."""
        return self.step, self.row.group_id, self.row.prompt, self.row.response

    @property
    def reward(self) -> float | None:
        """The reward; None without one of its own verdicts, or if a ranking made it, which is relative to its group."""
        return None if self.mode == "ranking" else self.row.own_reward


@dataclass(slots=True)
class AuditedRun:
    """What was read of a run.

    Attributes:
        ends: the steps of each part; one that is not limited for a run without steps.
        notes: what was not read, in sentences.
        parts: the responses of the early and of the late part.
        judges: the models that judged them, by fingerprint.
    """

    ends: Sequence[Steps]
    notes: list[str]
    parts: list[list[AuditedResponse]] = field(default_factory=list)
    judges: dict[str, str] = field(default_factory=dict)

    @property
    def responses(self) -> Iterator[tuple[bool, AuditedResponse]]:
        """Each response, and whether it is a late one."""
        return ((bool(late), one) for late, part in enumerate(self.parts) for one in part)

    @property
    def models(self) -> tuple[str, ...]:
        """The models, each once."""
        return tuple(dict.fromkeys(self.judges.values()))


async def read_run(ledger: LedgerReader, project_id: str, run: str, ends: Sequence[Steps] | None = None) -> AuditedRun:
    """Read the parts of a run between these steps; by default the first and the last third of its steps.

    With one part, what is read is divided in time, and its first and last third are kept.

    Raises:
        NotFound: the ledger does not have the run.
    """
    steps = await _verdicts_by_step(ledger, project_id, run, first_page=ends is not None)
    read = AuditedRun(*_outer_thirds(steps)) if ends is None else AuditedRun(ends, [])
    rubrics: dict[bytes, Mapping[str, Criterion]] = {}
    most = MAX_PART_VERDICTS * (3 if len(read.ends) == 1 else 1)
    for first, last in read.ends:
        part: list[AuditedResponse] = []
        wanted, verdicts = ResponseFilter(project_id, run, first, last, limit=_PAGE), 0
        async with aclosing(response_pages(ledger, wanted)) as pages:
            async for page in pages:
                if verdicts > most:
                    read.notes.append(f"Not all was read: of a part, the first {MAX_PART_VERDICTS:,} verdicts are.")
                    break
                used = {one.response.rubric for one in page if one.response.rubric is not None}
                for digest, text in (await ledger.texts(project_id, [*used.difference(rubrics)])).items():
                    rubrics[digest] = {one["id"]: Criterion.model_validate(one) for one in json.loads(text)}
                part += await run_in_thread(_responses, page, rubrics)
                verdicts += sum(len(one.votes) for one in page)
                read.judges |= {fp: one.request.model or "" for one in page if (fp := one.request.fingerprint)}
        read.parts.append(part)
    if len(read.ends) == 1:
        (whole,) = read.parts
        third = max(1, len(whole) // 3)
        read.parts = [whole[:third], whole[third:][-third:]]
    read.notes = list(dict.fromkeys(read.notes))
    return read


async def _verdicts_by_step(
    ledger: LedgerReader, project_id: str, run: str, *, first_page: bool
) -> list[tuple[int, int]]:
    """Return the steps of a run, each with its number of verdicts; of the first page only, or of all."""
    steps: list[tuple[int, int]] = []
    query = RunReportQuery(project_id, run, criteria=0, limit=1 if first_page else _STEPS_A_PAGE)
    while True:
        page = await ledger.run(query)
        if page is None:
            raise unknown_run(f"no record of run {run!r}")
        steps += [(one.step, one.verdicts) for one in page.steps if one.step is not None]
        if page.next_cursor is None or first_page:
            return steps
        query = query._replace(after=page.next_cursor)


def _outer_thirds(steps: Sequence[tuple[int, int]]) -> tuple[list[Steps], list[str]]:
    """Return the first and the last third of the steps, shortened to what is read; one part of all without steps."""
    if len(steps) < 2:
        return [(None, None)], ["The run has fewer than two steps, so its parts are the first and last third in time."]
    third = max(1, len(steps) // 3)
    early, late = _within(steps[:third]), _within(steps[: -third - 1 : -1])
    shorter = min(len(early), len(late)) < third
    notes = [f"Of each part, only the outer steps with {MAX_PART_VERDICTS:,} verdicts were read."] if shorter else []
    return [(early[0], early[-1]), (late[-1], late[0])], notes


def _within(steps: Sequence[tuple[int, int]]) -> list[int]:
    """Return the first steps, as long as all of their verdicts can be read; at least one."""
    kept: list[int] = []
    total = 0
    for step, verdicts in steps:
        total += verdicts
        if kept and total > MAX_PART_VERDICTS:
            break
        kept.append(step)
    return kept


def _responses(page: Sequence[UseRecord], rubrics: Mapping[bytes, Mapping[str, Criterion]]) -> list[AuditedResponse]:
    found = []
    for one in page:
        criteria = rubrics.get(one.response.rubric or b"", {})
        verdicts: dict[str, AuditedVerdict] = {}
        for slot, votes in groupby(one.votes, key=lambda vote: vote[0].slot):
            verdict = recorded_verdict(list(votes))
            criterion = criteria.get(verdict.criterion)
            if criterion is None or criterion.shadow or verdict.status == "left_out":
                continue
            credited = None if verdict.score is None else (verdict.score >= MET_FROM) != criterion.avoided
            verdicts[criterion.id] = AuditedVerdict(slot, credited)
        avoided = frozenset(name for name in verdicts if criteria[name].avoided)
        request = one.request
        found.append(AuditedResponse(one.response, request.step, request.request_id, request.mode, verdicts, avoided))
    return found
