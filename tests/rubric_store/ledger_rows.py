"""Rows of the ledger for tests: complete requests, whose verdicts have the given digests."""

import hashlib
import json
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rubric_store.ledger.rows import LedgerRows, RequestRow, ResponseRow, TextRow, UseRow, VerdictRow

PROJECT = "p1"
AT = datetime(2026, 5, 1, 12, 0, 0, 123456, UTC)
RUBRIC = hashlib.sha256(b"rubric").digest()
CRITERIA = json.dumps([{"id": "c0", "description": "Is short."}, {"id": "c1", "description": "Is right."}])


def digest(name: str) -> bytes:
    """A digest made from a name."""
    return hashlib.sha256(name.encode()).digest()


def request_key(number: int) -> bytes:
    """The key of the n-th request: keys sort by time."""
    return number.to_bytes(16, "big")


def text(value: str, project: str = PROJECT) -> TextRow:
    """A text's row."""
    return TextRow(project, digest(value), zlib.compress(json.dumps(value).encode()))


def verdict(name: str, number: int = 1, project: str = PROJECT, **fields: Any) -> VerdictRow:
    """A verdict's row, written by the n-th request."""
    values = {"score": 1.0, "probability": 0.75, "menu_mass": 0.5, "step": None, "grade": None, "rationale": None}
    raw = {"raw_probability": 0.6}
    return VerdictRow(project, digest(name), request_key(number), **(values | raw | fields))


def request(
    number: int,
    verdicts: Sequence[Sequence[str]],
    *,
    project: str = PROJECT,
    run: str = "run",
    step: int | None = 1,
    protocol: str = "binary",
    failed: Sequence[str] = (),
    votes: int = 1,
    at: datetime = AT,
    **found: Any,
) -> LedgerRows:
    """The rows of a request: `verdicts` names each response's verdicts, criterion by criterion and vote by vote."""
    key = request_key(number)
    uses, texts = [], [text("prompt", project), TextRow(project, RUBRIC, zlib.compress(CRITERIA.encode()))]
    responses = []
    for place, names in enumerate(verdicts):
        texts.append(text(f"response {number}.{place}", project))
        responses.append(
            ResponseRow(
                project, run, key, place, "g", place, RUBRIC, digest("prompt"), texts[-1].digest, None,
                7, True, False, None, 0.5, "scored",
            )
        )  # fmt: skip
        for index, name in enumerate(names):
            slot, vote = divmod(index, votes)
            failure = "timeout" if name in failed else None
            uses.append(
                UseRow(
                    project, run, key, place, slot, vote, f"c{slot}", "judge", digest(name), failure is not None,
                    failure, failure and "too late", 2, False,
                )
            )  # fmt: skip
    given = [verdict(name, number, project, **found) for names in verdicts for name in names if name not in failed]
    asked = RequestRow(
        project, run, key, f"req_{number}", step, "weighted_mean", protocol, "sha256:f", "m", votes, len(uses),
        2, 30, 20, 10, 1.5, at,
    )  # fmt: skip
    return LedgerRows(texts, given, [asked], responses, uses)


def rewarded(rows: LedgerRows, *rewards: float | None, groups: str = "") -> LedgerRows:
    """The rows with these rewards, one per response; each letter of `groups` is a response's group."""
    responses = [
        row._replace(
            reward=reward, status="unscored" if reward is None else "scored", group_id=groups[i : i + 1] or "g"
        )
        for i, (row, reward) in enumerate(zip(rows.responses, rewards, strict=True))
    ]
    return rows._replace(responses=responses)
