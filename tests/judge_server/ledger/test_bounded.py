"""40,000 judgements through judge, cache and recorder leave nothing in memory but the bounded cache."""

import asyncio
import gc
import sys
import threading
from pathlib import Path

import pytest

from judge_server.ledger import Recorder, RecorderLimits
from judge_server.scoring.cache import MemoryCache
from judge_server.scoring.scorer import Scorer
from rubric_store.ledger.rows import LedgerRows
from tests.fixtures.short_intervals import RECORDER_TIMES
from tests.judge_server.support import criteria, judge
from trainer_client.wire import RewardRequest

pytestmark = [pytest.mark.faults, pytest.mark.slow]

REQUESTS, RESPONSES, CRITERIA = 54, 64, 12
RUBRIC = {
    "criteria": [criterion.model_dump() for criterion in criteria(*[f"Part {n} holds." for n in range(CRITERIA)])]
}


class DiscardingLedger:
    """A ledger that counts the uses it is given and keeps none."""

    def __init__(self) -> None:
        self.uses = 0

    def write(self, rows: LedgerRows) -> None:
        """As `Ledger.write`."""
        self.uses += len(rows.uses)

    async def ready(self) -> bool:
        """Not used."""
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing to do."""


def settled(recorder: Recorder) -> int:
    """The number of memory blocks of Python's objects once everything is recorded."""
    pause = threading.Event()
    while recorder.state().waiting:
        pause.wait(0.01)
    gc.collect()
    return sys.getallocatedblocks()


async def test_memory_does_not_grow_once_the_cache_is_full(tmp_path: Path) -> None:
    ledger = DiscardingLedger()
    made = await judge(cache=MemoryCache(2000), queue_calls=10_000)
    recorder = Recorder(ledger, tmp_path, limits=RecorderLimits(10**6), times=RECORDER_TIMES)  # type: ignore[arg-type]
    scorer = Scorer(made, None, recorder)  # type: ignore[arg-type]
    blocks = []
    try:
        for number in range(REQUESTS):
            texts = [f"Response {m} of request {number}." for m in range(RESPONSES)]
            groups = [{"id": "g", "prompt": "Is 7 prime?", "responses": texts}]
            body = {"run": f"run {number % 4}", "step": number, "rubric": RUBRIC, "groups": groups}
            await scorer.score(RewardRequest.model_validate(body), request_id=f"req_{number}", project_id="default")
            if number % 9 == 8:
                while len(made.executor.write_buffer):  # noqa: ASYNC110 - the cache has no event to await
                    await asyncio.sleep(0)
                blocks.append(settled(recorder))
    finally:
        recorder.close()
        await made.close()
    assert ledger.uses == REQUESTS * RESPONSES * CRITERIA
    assert max(blocks[1:]) - blocks[1] < 2000  # one small object leaked per judgement would make 27,648
