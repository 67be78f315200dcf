"""What is left to write of rows that the database refuses: request by request, then row by row.

A refused row must cost no other row but those that mean nothing without it. Knows no reason for a refusal: whoever
calls says which errors are about a row.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, Table

from rubric_store.ledger import tables, writing
from rubric_store.ledger.runs_counting import RowKey
from trainer_client.wire.ledger_rows import LedgerRows, RefusedRows

_RowT = TypeVar("_RowT", bound=tuple[Any, ...])


def split_by_request(rows: LedgerRows) -> Iterator[LedgerRows]:
    """The rows of each request (project, run, request), with the verdicts and texts that it refers to.

    Rows of no request come last, together.
    """
    requests, responses, uses = _by_key(rows.requests, 3), _by_key(rows.responses, 3), _by_key(rows.uses, 3)
    texts, verdicts = _by_key(rows.texts, 2), _by_key(rows.verdicts, 2)
    unreferenced = {*texts}, {*verdicts}
    for key in dict.fromkeys((*requests, *responses, *uses)):
        digests = {d for each in responses[key] for d in (each.rubric, each.prompt, each.response, each.grounding)}
        text_keys = [(key[0], digest) for digest in digests if (key[0], digest) in texts]
        verdict_keys = [
            (key[0], digest) for digest in {use.digest for use in uses[key]} if (key[0], digest) in verdicts
        ]
        unreferenced[0].difference_update(text_keys)
        unreferenced[1].difference_update(verdict_keys)
        yield LedgerRows(
            [row for one in text_keys for row in texts[one]],
            [row for one in verdict_keys for row in verdicts[one]],
            requests[key],
            responses[key],
            uses[key],
        )
    if any(unreferenced):
        yield LedgerRows(
            [row for one in unreferenced[0] for row in texts[one]],
            [row for one in unreferenced[1] for row in verdicts[one]],
            [],
            [],
            [],
        )


def _by_key(rows: Sequence[_RowT], length: int) -> dict[RowKey, list[_RowT]]:
    """Rows by their first columns."""
    found: dict[RowKey, list[_RowT]] = defaultdict(list)
    for row in rows:
        found[row[:length]].append(row)
    return found


def write_row_by_row(
    connection: Connection, rows: LedgerRows, reason: Callable[[Exception], str]
) -> RefusedRows | None:
    """Write the rows of a request but for those that are refused, which are returned; the caller commits.

    `reason` says why a row is refused, and raises the error where that is not about the row. The request itself and its
    figures come last: where they are refused, the error is raised, and nothing is to be committed.
    """
    reasons: set[str] = set()

    def write_accepted(table: Table, given: Sequence[_RowT]) -> tuple[list[_RowT], list[_RowT]]:
        """Add what is taken, halving what is not; the rows that were taken, and those that were not."""
        if not given:
            return [], []
        try:
            with connection.begin_nested():
                writing.add(connection, table, given)
        except Exception as error:  # noqa: BLE001 - `reason` raises what is not about a row
            message = reason(error)
        else:
            return [*given], []
        if len(given) == 1:
            reasons.add(message)
            return [], [*given]
        middle = len(given) // 2
        first, second = write_accepted(table, given[:middle]), write_accepted(table, given[middle:])
        return first[0] + second[0], first[1] + second[1]

    texts, no_texts = write_accepted(tables.texts, rows.texts)
    verdicts, no_verdicts = write_accepted(tables.verdicts, rows.verdicts)
    responses, no_responses = write_accepted(tables.responses, rows.responses)
    refused_responses = {response[:4] for response in no_responses}
    uses, no_uses = write_accepted(tables.uses, [use for use in rows.uses if use[:4] not in refused_responses])
    writing.write(connection, LedgerRows(texts, verdicts, rows.requests, responses, uses))
    no_uses += [use for use in rows.uses if use[:4] in refused_responses]
    refused = LedgerRows(no_texts, no_verdicts, [], no_responses, no_uses)
    return RefusedRows(refused, "; ".join(sorted(reasons)[:3])) if reasons else None
