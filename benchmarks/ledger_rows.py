"""Rows of made-up runs as a service records them, and new databases to write them to."""

import hashlib
import json
import random
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.fixtures.postgres import running_postgres, scratch_database

from rubric_store.ledger.rows import (
    LedgerRows,
    RequestRow,
    ResponseRow,
    SignalRow,
    TextRow,
    UseRow,
    VerdictRow,
)
from trainer_client.wire import JudgingProtocol, RubricContent

STEPS, GROUP, CRITERIA = 1000, 10, 10
STEPS_OF_A_RESPONSE = 9
START = datetime(2026, 1, 1, tzinfo=UTC)
KINDS = ("suggest", "bonus", "answer")
RUBRIC = RubricContent.model_validate(
    {"criteria": [{"id": f"c{n}", "description": f"Criterion {n}.", "kind": KINDS[n % 3]} for n in range(CRITERIA)]}
)
_RUBRIC_DIGEST = bytes.fromhex(RUBRIC.digest.removeprefix("sha256:"))
_SPANS = json.dumps([(0, 0, 900), *((n, 100 * n - 100, 100 * n) for n in range(1, STEPS_OF_A_RESPONSE + 1))])
_SUMS = (64, 32.0, 32.0, 30.0, 20.0, 10.0, 56, 12.0, 8.0, 1.0)


@contextmanager
def new_database(kind: str) -> Iterator[str]:
    """Create a database, `sqlite` or on a `postgresql` of its own; yield its URL."""
    with ExitStack() as stack:
        if kind == "sqlite":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            yield f"sqlite+aiosqlite:///{Path(folder) / 'ledger.db'}"
            return
        database = stack.enter_context(scratch_database(stack.enter_context(running_postgres())))
        yield database.render_as_string(hide_password=False)


def requests(run: str, verdicts: int, protocol: JudgingProtocol = "binary") -> Iterator[LedgerRows]:
    """Yield the rows of one request for each step, and the sums that monitors read.

    Raises:
        ValueError: `verdicts`, those of the whole run, are too few for one response at each step.
    """
    if verdicts < STEPS * CRITERIA:
        raise ValueError(f"a run of {STEPS:,} steps needs at least {STEPS * CRITERIA:,} verdicts, not {verdicts:,}")
    draw = random.Random(run)
    criteria = [criterion.model_dump(mode="json") for criterion in RUBRIC.criteria]
    spans = _SPANS if protocol == "stepwise" else None
    for step in range(STEPS):
        key = _digest(run)[:8] + step.to_bytes(8, "big")
        texts, verdict_rows, responses, uses = [_text_row(_RUBRIC_DIGEST, criteria)], [], [], []
        for place in range(verdicts // STEPS // CRITERIA):
            name = f"{run}.{step}.{place}"
            scores = [draw.random() for _ in range(CRITERIA)]
            for slot, score in enumerate(scores):
                call, passed = _digest(f"{name}.{slot}"), float(score >= 0.5)
                deciding = draw.randint(1, STEPS_OF_A_RESPONSE) if spans else None
                verdict_rows.append(VerdictRow("default", call, key, passed, score, 0.9, deciding, None, None, score))
                where = ("default", run, key, place, slot, 0, f"c{slot}", "judge", call)
                uses.append(UseRow(*where, False, None, None, None, False))
            texts.append(_text_row(_digest(name), f"Response {name}."))
            reward = sum(score >= 0.5 for score in scores) / CRITERIA
            read = (_RUBRIC_DIGEST, _digest(f"prompt {place // GROUP}"), _digest(name), None)
            group = ("default", run, key, place, f"g{place // GROUP}", place % GROUP)
            responses.append(ResponseRow(*group, *read, 900, True, True, spans, reward, "scored"))
        judged = ("weighted_mean", protocol, "sha256:f", "scripted", 1, len(uses), len(uses))
        cost = (100_000, 300_000, 1_000, 2.0, START + timedelta(minutes=step))
        request = RequestRow("default", run, key, f"req_{step}", step, *judged, *cost)
        yield LedgerRows(texts, verdict_rows, [request], responses, uses, _signals(run, key, step))


def _signals(run: str, key: bytes, step: int) -> list[SignalRow]:
    names = [*(("criterion", f"c{n}") for n in range(CRITERIA)), ("length", "tokens"), ("overlap", "")]
    return [SignalRow("default", run, key, signal, name, step, *_SUMS) for signal, name in names]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _text_row(key: bytes, value: object) -> TextRow:
    return TextRow("default", key, zlib.compress(json.dumps(value).encode(), 1))
