"""Read the ledger: uses page by page for display, and whole runs to recompute rewards from."""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, case, func, or_, select, tuple_

from rubric_store.ledger.rows import (
    LEFT_OUT,
    UNCERTAIN,
    JudgedBy,
    JudgedResponse,
    JudgedRun,
    JudgedVote,
    RequestRow,
    ResponseFilter,
    ResponseRow,
    RunRange,
    UseFilter,
    UseRecord,
    UseRow,
    VerdictOutcome,
    VerdictRow,
)
from rubric_store.ledger.runs import PASS_THRESHOLD
from rubric_store.ledger.tables import (
    JUDGED_USES,
    NO_STEP,
    REQUEST_OF_RESPONSE,
    VERDICT_OF_USE,
    criteria,
    in_steps,
    look_up,
    of_run,
    requests,
    responses,
    texts,
    uses,
    verdicts,
)

_REQUESTS_PER_BATCH = 4000
_REQUESTS_SEARCHED = 200
"""Requests in a statement that looks for verdicts."""
_REQUEST, _RESPONSE, _USE = len(requests.columns), len(responses.columns), len(uses.columns)

_USES_OF_RESPONSE = look_up(uses, responses, "project_id", "run", "request", "place")
_STATUS = {
    "ok": and_(~uses.c.failed, func.coalesce(uses.c.failure, "").not_in((UNCERTAIN, LEFT_OUT))),
    "failed": uses.c.failed,
    "uncertain": and_(~uses.c.failed, uses.c.failure == UNCERTAIN),
    "left_out": and_(~uses.c.failed, uses.c.failure == LEFT_OUT),
}
"""The condition on a use for its verdict's status."""
_USE_KEY = tuple_(uses.c.request, uses.c.place, uses.c.slot)


def page(connection: Connection, wanted: UseFilter) -> list[UseRecord]:
    """A page of a run's uses that match a filter, in order, with all their votes."""
    shown = (
        select(requests, responses, uses, verdicts)
        .select_from(JUDGED_USES)
        .where(*of_run(uses, wanted), uses.c.vote == 0)
        .order_by(uses.c.request, uses.c.place, uses.c.slot)
    )
    for column, value in (
        (responses.c.rubric, wanted.rubric),
        (uses.c.criterion, wanted.criterion),
        (uses.c.failure, wanted.failure),
    ):
        if value is not None:
            shown = shown.where(column == value)
    if wanted.status is not None:
        shown = shown.where(_STATUS[wanted.status])
    if wanted.after is not None:
        shown = shown.where(tuple_(*wanted.after) < _USE_KEY)
    if wanted.step is None:
        found = connection.execute(shown.limit(wanted.limit)).all()
    else:
        keys = _keys(wanted).where(requests.c.step == wanted.step)
        found = _search(connection, shown, uses.c.request, keys, wanted)
    records = [to_record(tuple(row)) for row in found]
    multi_vote = {record.votes[0][0][2:5]: record for record in records if record.request.votes > 1}
    if multi_vote:
        for use, verdict in _votes_of(connection, wanted, uses.c.vote > 0, _USE_KEY.in_(list(multi_vote))):
            multi_vote[use[2:5]].votes.append((use, verdict))
    return records


def _votes_of(
    connection: Connection, wanted: UseFilter | ResponseFilter, *chosen: ColumnElement[bool]
) -> Iterator[tuple[UseRow, VerdictRow | None]]:
    """Votes of a run with their verdicts, in order."""
    votes = select(uses, verdicts).outerjoin(verdicts, VERDICT_OF_USE).where(*of_run(uses, wanted), *chosen)
    ordered = votes.order_by(uses.c.request, uses.c.place, uses.c.slot, uses.c.vote)
    for row in connection.execute(ordered):
        yield UseRow(*row[:_USE]), _verdict(tuple(row[_USE:]))


def responses_of(connection: Connection, wanted: ResponseFilter) -> list[UseRecord]:
    """The responses of a run that match a filter, in order, with all their votes if these are wanted."""
    if wanted.criterion is not None:
        found = _responses_by_verdict(connection, wanted, wanted.criterion)
    else:
        found = list(connection.execute(_responses(wanted).limit(None if wanted.keys else wanted.limit)))
    records = {}
    for row in found:
        request, response = RequestRow(*row[:_REQUEST]), ResponseRow(*row[_REQUEST:])
        records[response.request, response.place] = UseRecord(request, response, [])
    if wanted.keys:
        records = {key: records[key] for key in sorted(wanted.keys) if key in records}
    if records and wanted.with_votes:
        # Not by pairs, which SQLite would look for in all uses of the run.
        of_requests = uses.c.request.in_({request for request, _ in records})
        at_places = uses.c.place.in_({place for _, place in records})
        for use, verdict in _votes_of(connection, wanted, of_requests, at_places):
            if (record := records.get((use.request, use.place))) is not None:
                record.votes.append((use, verdict))
    return list(records.values())


def _responses(wanted: ResponseFilter) -> Select[Any]:
    """Requests and responses that match a filter, whatever their verdicts, in order."""
    chosen = (
        select(requests, responses)
        .select_from(responses)
        .join(requests, REQUEST_OF_RESPONSE)
        .where(*of_run(responses, wanted), *in_steps(requests, wanted))
        .order_by(responses.c.request, responses.c.place)
    )
    if wanted.low is not None:
        chosen = chosen.where(responses.c.reward >= wanted.low)
    if wanted.high is not None:
        reward = responses.c.reward
        chosen = chosen.where(reward <= wanted.high if wanted.includes_high else reward < wanted.high)
    for column, value in (
        (responses.c.status, wanted.status),
        (responses.c.rubric, wanted.rubric),
        (responses.c.request, wanted.request),
        (responses.c.group_id, wanted.group_id),
    ):
        if value is not None:
            chosen = chosen.where(column == value)
    if wanted.keys:  # not by pairs, as in `responses_of`
        chosen = chosen.where(
            responses.c.request.in_({request for request, _ in wanted.keys}),
            responses.c.place.in_({place for _, place in wanted.keys}),
        )
    if wanted.after is not None:
        chosen = chosen.where(tuple_(*wanted.after) < tuple_(responses.c.request, responses.c.place))
    return chosen


_COUNTED: Mapping[VerdictOutcome | None, ColumnElement[int]] = {
    None: criteria.c.verdicts,
    "passed": criteria.c.passed,
    "not passed": criteria.c.verdicts - criteria.c.failed - criteria.c.uncertain - criteria.c.passed,
    "failed": criteria.c.failed,
    "uncertain": criteria.c.uncertain,
}
"""How many verdicts of an outcome a step has; verdicts that were left out are not counted."""


def _responses_by_verdict(connection: Connection, wanted: ResponseFilter, criterion: str) -> list[Any]:
    """Requests and responses with a verdict on a criterion, found in the steps that have such verdicts by the sums."""
    keys = _keys(wanted)
    if wanted.outcome == "left out":
        keys = keys.where(requests.c.reward_rules.contains('"dropout"', autoescape=True))
    else:
        listed = select(criteria.c.step).distinct().where(
            *of_run(criteria, wanted), *in_steps(criteria, wanted),
            criteria.c.criterion == criterion, _COUNTED[wanted.outcome] > 0,
        )  # fmt: skip
        steps = list(connection.execute(listed).scalars())
        keys = keys.where(func.coalesce(requests.c.step, NO_STEP).in_(steps))
    chosen = _responses(wanted).where(_has_verdict(criterion, wanted.outcome))
    return _search(connection, chosen, responses.c.request, keys, wanted)


def _keys(wanted: UseFilter | ResponseFilter) -> Select[Any]:
    return select(requests.c.request).where(*of_run(requests, wanted))


def _search(
    connection: Connection,
    chosen: Select[Any],
    request: ColumnElement[bytes],
    keys: Select[Any],
    wanted: UseFilter | ResponseFilter,
) -> list[Any]:
    """The first rows of a statement that is ordered by `request`, of the requests with these keys, some at a time."""
    if wanted.after is not None:
        keys = keys.where(requests.c.request >= wanted.after[0])
    known = list(connection.execute(keys.order_by(requests.c.request)).scalars())
    found: list[Any] = []
    for start in range(0, len(known), _REQUESTS_SEARCHED):
        part = chosen.where(request.in_(known[start : start + _REQUESTS_SEARCHED]))
        found += connection.execute(part.limit(wanted.limit - len(found)))
        if len(found) == wanted.limit:
            break
    return found


def _has_verdict(criterion: str, outcome: VerdictOutcome | None) -> ColumnElement[bool]:
    """Whether a response has a vote on a criterion that an outcome needs."""
    own = select(uses.c.slot).where(_USES_OF_RESPONSE, uses.c.criterion == criterion)
    if outcome in ("passed", "not passed"):
        own = own.join(verdicts, VERDICT_OF_USE).where(_STATUS["ok"])
        passed = verdicts.c.score >= PASS_THRESHOLD
        own = own.where(passed if outcome == "passed" else or_(~passed, requests.c.votes > 1))
    elif outcome is not None:
        own = own.where(_STATUS[outcome.replace(" ", "_")])
    return own.correlate(responses, requests).exists()


def texts_of(connection: Connection, project_id: str, digests: Sequence[bytes]) -> dict[bytes, str]:
    """Texts by digest, as JSON, without those that the ledger does not keep."""
    stored = select(texts.c.digest, texts.c.body).where(texts.c.project_id == project_id, texts.c.digest.in_(digests))
    return {digest: zlib.decompress(body).decode() for digest, body in connection.execute(stored)}


def short_texts_of(
    connection: Connection, project_id: str, digests: Sequence[bytes], max_bytes: int
) -> dict[bytes, str | None]:
    """Texts by digest, as `texts_of`, with None for each that has more than `max_bytes`, plain or compressed."""
    short = case((func.length(texts.c.body) <= max_bytes, texts.c.body))
    stored = select(texts.c.digest, short).where(texts.c.project_id == project_id, texts.c.digest.in_(digests))
    found: dict[bytes, str | None] = {}
    for digest, body in connection.execute(stored):
        reader = zlib.decompressobj()
        text = reader.decompress(body or b"", max_bytes + 1)  # a compressed text may be a thousand times as long
        found[digest] = text.decode() if reader.eof and len(text) <= max_bytes else None
    return found


def verdicts_of(connection: Connection, project_id: str, digests: Sequence[bytes]) -> dict[bytes, VerdictRow]:
    """Verdicts by the digest of their call, without calls that have none."""
    stored = select(verdicts).where(verdicts.c.project_id == project_id, verdicts.c.digest.in_(digests))
    return {row.digest: VerdictRow(*row) for row in connection.execute(stored)}


def judged_run(connection: Connection, part: RunRange) -> JudgedRun:
    """The number of requests and uses in a part of a run, the ways in which they were judged, rubrics and judges."""
    totals: list[Any] = [func.count().label("requests"), func.sum(requests.c.uses).label("uses")]
    counted = connection.execute(_filter_part(select(*totals), part)).one()
    judged_by = (
        select(requests.c.protocol, requests.c.reward_rules, responses.c.rubric)
        .distinct()
        .select_from(requests)
        .join(responses, look_up(responses, requests, "project_id", "run", "request"))
        .order_by(requests.c.protocol, requests.c.reward_rules, responses.c.rubric)
    )
    found = [JudgedBy(*row) for row in connection.execute(_filter_part(judged_by, part))]
    used = {one.rubric for one in found if one.rubric is not None}
    judges = select(requests.c.fingerprint, requests.c.votes).distinct().where(requests.c.fingerprint.is_not(None))
    judged = connection.execute(_filter_part(judges, part).order_by(requests.c.fingerprint, requests.c.votes)).all()
    return JudgedRun(
        counted.requests,
        int(counted.uses or 0),
        tuple(found),
        texts_of(connection, part.project_id, list(used)),
        tuple([(row.fingerprint, row.votes) for row in judged]),
    )


def judged_responses(
    connection: Connection, part: RunRange, after: bytes | None, count: int
) -> tuple[list[JudgedResponse], bytes | None]:
    """Responses of a part of a run, with about `count` uses, and the key to continue after; None at the end."""
    of_requests = [requests.c[name] for name in ("request", "request_id", "step", "reward_rules", "uses")]
    listed = _filter_part(select(*of_requests), part)
    if after is not None:
        listed = listed.where(requests.c.request > after)
    known: dict[bytes, tuple[str, int | None]] = {}
    rules: dict[bytes, str | None] = {}
    total = 0
    for request, request_id, step, reward_rules, use_count in connection.execute(
        listed.order_by(requests.c.request).limit(_REQUESTS_PER_BATCH)
    ):
        known[request], rules[request] = (request_id, step), reward_rules
        total += use_count
        if total >= count:
            break
    if not known:
        return [], None
    votes = _votes(connection, part, known)
    read = []
    for row in _read(connection, part, known, responses, _RESPONSE_COLUMNS, responses.c.place):
        request, place, group_id, position, rubric, tokens, stopped, format_ok, spans = row
        own, given = votes.get((request, place), []), rules[request]
        request_id, step = known[request]
        read.append(
            JudgedResponse(request_id, step, group_id, position, rubric, tokens, stopped, format_ok, spans, own, given)
        )
    return read, next(reversed(known))


_RESPONSE_COLUMNS = [
    responses.c[name] for name in ("group_id", "position", "rubric", "tokens", "stopped", "format_ok", "spans")
]
_VOTE_COLUMNS = [
    uses.c.slot,
    uses.c.criterion,
    uses.c.method,
    uses.c.failure,
    uses.c.detail,
    verdicts.c.score,
    verdicts.c.grade,
]


def _votes(
    connection: Connection, part: RunRange, known: dict[bytes, tuple[str, int | None]]
) -> dict[tuple[bytes, int], list[JudgedVote]]:
    step = func.coalesce(verdicts.c.step, uses.c.step)
    columns = [*_VOTE_COLUMNS, step, verdicts.c.probability]
    rows = _read(connection, part, known, uses, columns, uses.c.place, uses.c.slot, uses.c.vote)
    return {
        key: [JudgedVote(*row[2:]) for row in found] for key, found in groupby(rows, key=lambda row: (row[0], row[1]))
    }


def _read(
    connection: Connection, part: RunRange, known: dict[bytes, Any], table: Any, columns: list[Any], *order: Any
) -> Iterable[Any]:
    """Rows of the known requests. They are read as one key range, and rows of other requests in it are dropped."""
    first, last = next(iter(known)), next(reversed(known))
    rows = select(table.c.request, table.c.place, *columns).where(
        *of_run(table, part), table.c.request.between(first, last)
    )
    if table is uses:
        rows = rows.select_from(uses).outerjoin(verdicts, VERDICT_OF_USE)
    in_range = connection.execute(rows.order_by(table.c.request, *order)).all()
    return (row for row in in_range if row[0] in known)


def _filter_part(statement: Select[Any], part: RunRange) -> Select[Any]:
    statement = statement.where(*of_run(requests, part), *in_steps(requests, part))
    return statement if part.protocol is None else statement.where(requests.c.protocol == part.protocol)


def to_record(row: tuple[Any, ...]) -> UseRecord:
    """The record of a row of requests, responses, uses and verdicts, with one vote."""
    request, rest = RequestRow(*row[:_REQUEST]), row[_REQUEST:]
    response, rest = ResponseRow(*rest[:_RESPONSE]), rest[_RESPONSE:]
    return UseRecord(request, response, [(UseRow(*rest[:_USE]), _verdict(rest[_USE:]))])


def _verdict(columns: tuple[Any, ...]) -> VerdictRow | None:
    return None if columns[0] is None else VerdictRow(*columns)
