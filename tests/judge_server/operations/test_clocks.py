"""Operations in chunks by processes of hosts whose clocks differ, with whatever queue and database."""

from datetime import timedelta

import pytest

from tests.judge_server.operations.benches import Bench


@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(hours=-1)], ids=["ahead", "behind"])
async def test_chunks_begin_at_once_and_once_whatever_the_clock_of_who_announces_them(
    bench: Bench, ahead: timedelta
) -> None:
    bench.ahead = ahead
    id_ = await bench.submitted(3)
    await bench.begun(0, 1)
    await bench.feeder.feed()
    bench.kind.let(3)
    done = await bench.until(id_)
    assert (done.state, bench.kind.begun, bench.kind.stopped) == ("done", {0: 1, 1: 1, 2: 1}, {})
