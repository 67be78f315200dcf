"""What is left to write of rows that the database refuses: request by request, then row by row.

A refused row must cost no other row but those that mean nothing without it. Knows no reason for a refusal: whoever
calls says which errors are about a row.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, Table

from rubric_store.ledger import tables, writing
from rubric_store.ledger.runs_counting import Key
from trainer_client.wire.ledger_rows import LedgerRows, RefusedRows

_RowT = TypeVar("_RowT", bound=tuple[Any, ...])


def by_request(rows: LedgerRows) -> Iterator[LedgerRows]:
    """The rows of each request (project, run, request), with the verdicts and texts that it refers to.

    Rows of no request come last, together.
    """
    requests, responses, uses = _by_key(rows.requests, 3), _by_key(rows.responses, 3), _by_key(rows.uses, 3)
    texts, verdicts = _by_key(rows.texts, 2), _by_key(rows.verdicts, 2)
    left = {*texts}, {*verdicts}
    for key in dict.fromkeys((*requests, *responses, *uses)):
        digests = {d for each in responses[key] for d in (each.rubric, each.prompt, each.response, each.grounding)}
        of_texts = [(key[0], digest) for digest in digests if (key[0], digest) in texts]
        of_verdicts = [(key[0], digest) for digest in {use.digest for use in uses[key]} if (key[0], digest) in verdicts]
        left[0].difference_update(of_texts)
        left[1].difference_update(of_verdicts)
        yield LedgerRows(
            [row for one in of_texts for row in texts[one]],
            [row for one in of_verdicts for row in verdicts[one]],
            requests[key],
            responses[key],
            uses[key],
        )
    if any(left):
        yield LedgerRows(
            [row for one in left[0] for row in texts[one]],
            [row for one in left[1] for row in verdicts[one]],
            [],
            [],
            [],
        )


def _by_key(rows: Sequence[_RowT], length: int) -> dict[Key, list[_RowT]]:
    """Rows by their first columns."""
    found: dict[Key, list[_RowT]] = defaultdict(list)
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
    why: set[str] = set()

    def taken(table: Table, given: Sequence[_RowT]) -> tuple[list[_RowT], list[_RowT]]:
        """Add what is taken, halving what is not; the rows that were taken, and those that were not."""
        if not given:
            return [], []
        try:
            with connection.begin_nested():
                writing.add(connection, table, given)
        except Exception as error:  # noqa: BLE001 - `reason` raises what is not about a row
            said = reason(error)
        else:
            return [*given], []
        if len(given) == 1:
            why.add(said)
            return [], [*given]
        middle = len(given) // 2
        first, second = taken(table, given[:middle]), taken(table, given[middle:])
        return first[0] + second[0], first[1] + second[1]

    texts, no_texts = taken(tables.texts, rows.texts)
    verdicts, no_verdicts = taken(tables.verdicts, rows.verdicts)
    responses, no_responses = taken(tables.responses, rows.responses)
    gone = {response[:4] for response in no_responses}
    uses, no_uses = taken(tables.uses, [use for use in rows.uses if use[:4] not in gone])
    writing.write(connection, LedgerRows(texts, verdicts, rows.requests, responses, uses))
    no_uses += [use for use in rows.uses if use[:4] in gone]
    refused = LedgerRows(no_texts, no_verdicts, [], no_responses, no_uses)
    return RefusedRows(refused, "; ".join(sorted(why)[:3])) if why else None
