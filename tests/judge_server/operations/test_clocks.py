"""Operations in chunks across hosts whose clocks differ, for every queue and database."""

from datetime import timedelta

import pytest

from tests.judge_server.operations.harness import OperationsHarness


@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(hours=-1)], ids=["ahead", "behind"])
async def test_chunks_begin_at_once_and_only_once_whatever_the_clock_that_enqueues_them(
    harness: OperationsHarness, ahead: timedelta
) -> None:
    harness.ahead = ahead
    id_ = await harness.submitted(3)
    await harness.begun(0, 1)
    await harness.dispatcher.dispatch()
    harness.kind.release(3)
    done = await harness.until(id_)
    assert (done.state, harness.kind.begun, harness.kind.stopped) == ("done", {0: 1, 1: 1, 2: 1}, {})
