"""From rows of the ledger to what they add to their runs' figures. Pure; knows no database.

Figures are of what was answered: a call that was made again counts as it was answered, though the first verdict under
its digest is the one that stands. Votes become a verdict as `judge_server.judging.votes` combines them.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import Table

from rubric_store.ledger.runs_tables import NO_STEP, criteria, failures, rubrics, runs, steps
from trainer_client.wire.ledger_rows import LedgerRows, RequestRow, UseRow, VerdictRow

PASS_THRESHOLD = 0.5
"""A score from which on a criterion counts as passed."""

RowKey = tuple[Any, ...]
FigureDeltas = dict[Table, dict[RowKey, list[Any]]]

_RESPONSES, _SCORED, _REWARDS, _REWARD_SUM, _REWARD_SQUARES, _VERDICTS, _FAILED, _CACHED = 1, 2, 5, 6, 7, 8, 9, 10
_STATUSES = {"scored": _SCORED, "partial": _SCORED + 1, "unscored": _SCORED + 2}
_response_of, _slot_of = itemgetter(slice(0, 4)), itemgetter(4)


def count_figures(rows: LedgerRows, requests: Collection[RowKey]) -> FigureDeltas:
    """What these requests (project, run, request) add to each table, by the table's key; the rest of it in order."""
    chosen = set(requests)
    chosen_requests = {row[:3]: row for row in rows.requests if row[:3] in chosen}
    added: FigureDeltas = {table: {} for table in (runs, steps, failures, rubrics, criteria)}
    for row in chosen_requests.values():
        _add_request(added, row)
    rubric_by_response = _add_responses(added, rows, chosen_requests)
    found: dict[str, dict[bytes, VerdictRow]] = {}
    for verdict in rows.verdicts:
        found.setdefault(verdict.project_id, {}).setdefault(verdict.digest, verdict)
    for response, uses in groupby(rows.uses, _response_of):
        if (request := chosen_requests.get(response[:3])) is not None:
            _add_verdicts(added, request, rubric_by_response[response], uses, found.get(response[0], {}))
    return added


def _add_request(added: FigureDeltas, row: RequestRow) -> None:
    moments = added[runs].setdefault(row[:2], [row.created_at, row.created_at])
    moments[:] = min(moments[0], row.created_at), max(moments[1], row.created_at)
    figures = added[steps].setdefault(_step_key(row), [0] * 6 + [0.0] * 2 + [0] * 7 + [0.0])
    spent = (row.judge_calls, row.tokens_computed, row.tokens_reused, row.tokens_written, row.seconds)
    figures[0] += 1
    for place, value in enumerate(spent, _CACHED + 1):
        figures[place] += value


def _add_responses(
    added: FigureDeltas, rows: LedgerRows, chosen_requests: dict[RowKey, RequestRow]
) -> dict[RowKey, bytes]:
    """Count responses; the rubric of each."""
    rubric_by_response = {}
    for response in rows.responses:
        row = chosen_requests.get(response[:3])
        if row is None:
            continue
        rubric = rubric_by_response[response[:4]] = response.rubric or b""
        figures = added[steps][_step_key(row)]
        figures[_RESPONSES] += 1
        if response.status is not None:
            figures[_STATUSES[response.status]] += 1
        if response.reward is not None:
            figures[_REWARDS] += 1
            figures[_REWARD_SUM] += response.reward
            figures[_REWARD_SQUARES] += response.reward**2
        if rubric:
            added[rubrics].setdefault((*row[:2], rubric), [0])[0] += 1
    return rubric_by_response


def _add_verdicts(
    added: FigureDeltas, row: RequestRow, rubric: bytes, uses: Iterator[UseRow], found: dict[bytes, VerdictRow]
) -> None:
    """Count the verdicts of one response."""
    key = (row.project_id, row.run, NO_STEP if row.step is None else row.step)
    figures, criteria_counts = added[steps][_step_key(row)], added[criteria]
    slots: Iterable[Sequence[UseRow]] = zip(uses) if row.votes == 1 else map(_votes_of, groupby(uses, _slot_of))
    for votes in slots:
        first = votes[0]
        criterion_counts = criteria_counts.setdefault((*key, rubric, first.criterion), [0, 0, 0, 0.0])
        score = None if first.failed else _score([found.get(vote.digest) for vote in votes])
        figures[_VERDICTS] += 1
        criterion_counts[0] += 1
        if score is None:
            kind = next((vote.failure for vote in votes if vote.failure is not None), "engine")
            figures[_FAILED] += 1
            criterion_counts[1] += 1
            added[failures].setdefault((*key, kind), [0])[0] += 1
            continue
        figures[_CACHED] += all(vote.cached for vote in votes)
        criterion_counts[2] += score >= PASS_THRESHOLD
        criterion_counts[3] += score


def _votes_of(slot: tuple[int, Iterator[UseRow]]) -> list[UseRow]:
    return [*slot[1]]


def _score(votes: Sequence[VerdictRow | None]) -> float | None:
    """The score of a verdict from its votes, None for those that failed; None where all did."""
    if len(votes) == 1:
        return None if votes[0] is None else votes[0].score
    given = [vote for vote in votes if vote is not None]
    if not given:
        return None
    if any(vote.grade is not None for vote in given):
        return sum(vote.score for vote in given) / len(given)
    return float(2 * sum(vote.score == 1.0 for vote in given) > len(votes))


def _step_key(row: RequestRow) -> RowKey:
    step = NO_STEP if row.step is None else row.step
    return row.project_id, row.run, step, row.mode or "", row.protocol, row.model or ""
