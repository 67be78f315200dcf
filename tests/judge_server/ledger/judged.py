"""Helpers for tests of recording: a scorer that writes requests to a ledger at once, and a script with failures."""

import hashlib
from typing import Any

from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.ledger.rows import rows_of
from judge_server.ports import Batch, Call, CallFailure, Ledger, Reply
from judge_server.scoring.planner import JudgedRequest
from judge_server.scoring.scorer import Scorer
from rubric_store.ledger.rows import LedgerRows
from tests.judge_server import support
from trainer_client.wire import RewardAnswer, RewardRequest

PROJECT = "default"


def some_fail(batch: Batch, call: Call) -> Reply | CallFailure:
    """Answer by hash, but fail every fifth call, always the same ones."""
    if hashlib.sha256(f"{batch.shared}{call.question}{call.sample}".encode()).digest()[0] % 5 == 0:
        return CallFailure("truncated_input", "it is too long\0")
    return by_hash(batch, call)


class SynchronousRecorder:
    """A recorder that writes to the ledger before it returns."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.ledger = ledger
        self.judged: list[JudgedRequest] = []

    def record(self, judged: JudgedRequest) -> None:
        """Keep and write the request."""
        self.judged.append(judged)
        if self.ledger is not None:
            self.ledger.write(rows_of([judged], keep_texts=True))


async def scorer(recorder: SynchronousRecorder, script: Any = by_hash) -> Scorer:
    """A scorer with an engine of this script."""
    judge = await support.judge(ScriptedEngine(script))
    return Scorer(judge, None, recorder)  # type: ignore[arg-type]  # rubrics are inline


async def score(scorer: Scorer, body: dict[str, Any], request_id: str = "req_1") -> RewardAnswer:
    """The answer to a body of `POST /v1/rewards`."""
    return await scorer.score(RewardRequest.model_validate(body), request_id=request_id, project_id=PROJECT)


async def rows(*bodies: dict[str, Any], script: Any = by_hash, keep_texts: bool = True) -> LedgerRows:
    """The rows of these requests, scored by one judge."""
    recorder = SynchronousRecorder()
    made = await scorer(recorder, script)
    for number, body in enumerate(bodies, 1):
        await score(made, body, f"req_{number}")
    return rows_of(recorder.judged, keep_texts=keep_texts)
