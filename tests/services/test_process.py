"""How a serving process tunes Python."""

import gc
import sys

from adjudge_services.process import switch_threads_often, tune_garbage_collector


def test_computing_threads_yield_sooner_than_by_default() -> None:
    usual = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        switch_threads_often()
        assert sys.getswitchinterval() < 0.005
    finally:
        sys.setswitchinterval(usual)


def test_a_large_request_causes_no_garbage_collection_of_more_than_some_thousand_objects() -> None:
    looked_at: list[int] = []

    def count(phase: str, told: dict[str, int]) -> None:
        if phase == "start":
            looked_at.append(sum(len(gc.get_objects(younger)) for younger in range(told["generation"] + 1)))

    usual, was_enabled = gc.get_threshold(), gc.isenabled()
    gc.callbacks.append(count)
    try:
        gc.enable()
        tune_garbage_collector()
        looked_at.clear()  # the collection that tuning starts with
        kept = [[n] for n in range(300_000)]
    finally:
        gc.callbacks.remove(count)
        gc.set_threshold(*usual)
        if not was_enabled:
            gc.disable()
    assert len(kept) == 300_000
    assert looked_at
    assert max(looked_at) < 25_000
