"""How fast an engine computes prompt tokens and writes tokens: measured on this machine, or as published.

seconds = computed * prefill_s + written * decode_s, with both rates of one replica under full load. A replica is one
engine with all its GPUs.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from judge_server.judging.plan import ResponsePlan
from judge_server.ports import CallFailure, Engine


class Rates(NamedTuple):
    """The rates of one replica.

    Attributes:
        name: what they are the rates of.
        prefill_s, decode_s: seconds per prompt token that is computed, and per token that is written.
        gpus: the GPUs of a replica; 0 for a CPU.
        source: where the rates come from.
    """

    name: str
    prefill_s: float
    decode_s: float
    gpus: int
    source: str

    def seconds(self, computed: float, written: float) -> float:
        """Return the time that one replica needs."""
        return computed * self.prefill_s + written * self.decode_s


class PublishedThroughput(NamedTuple):
    """Output tokens per second of one replica under full load, of requests of 2048 + 128 and of 128 + 2048 tokens."""

    gpus: int
    long_prompts: float
    long_answers: float


TENSORRT_LLM_1_0 = (
    "TensorRT-LLM 1.0, docs/source/performance/perf-overview.md, throughput at 2048/128 and 128/2048 tokens"
)

PUBLISHED: dict[str, PublishedThroughput] = {
    "llama-3.1-8b-fp8@h100": PublishedThroughput(1, 3_450, 22_714),
    "llama-3.1-8b-fp8@h200": PublishedThroughput(1, 3_538, 26_221),
    "qwen3-30b-a3b-fp4@b200": PublishedThroughput(1, 6_251, 37_844),
    "llama-3.3-70b-fp8@h100x2": PublishedThroughput(2, 762, 6_651),
    "llama-3.3-70b-fp8@h200": PublishedThroughput(1, 442, 4_336),
    "llama-3.3-70b-fp4@b200": PublishedThroughput(1, 1_339, 9_922),
    "llama-4-scout-fp8@h100x4": PublishedThroughput(4, 3_253, 15_130),
    "qwen3-235b-a22b-fp8@h200x8": PublishedThroughput(8, 3_331, 42_821),
}
"""Published figures, by model, precision and GPUs."""


def published_rates(name: str) -> Rates:
    """Return the rates behind published throughputs: two equations of the form of this module, and their solution.

    Raises:
        ValueError: there are no figures of this name.
    """
    if name not in PUBLISHED:
        raise ValueError(f"there are no published rates of {name!r}; use {', '.join(PUBLISHED)}, or measure an engine")
    figures = PUBLISHED[name]
    tokens = np.array([[2048.0, 128.0], [128.0, 2048.0]])
    seconds = np.array([128 / figures.long_prompts, 2048 / figures.long_answers])
    prefill_s, decode_s = np.linalg.solve(tokens, seconds)
    return Rates(name, float(prefill_s), float(decode_s), figures.gpus, TENSORRT_LLM_1_0)


async def measure_rates(engine: Engine, name: str, plans: Sequence[ResponsePlan]) -> Rates:
    """Have an engine answer the calls of some plans one after another, and fit its rates.

    Raises:
        ValueError: a call failed, or there are too few calls to fit two rates.
    """
    rows: list[tuple[int, int]] = []
    seconds: list[float] = []
    for plan in plans:
        began = time.perf_counter()
        async for _, outcome in engine.answer(plan.batch):
            now = time.perf_counter()
            if isinstance(outcome, CallFailure):
                raise ValueError(f"a call failed while the engine was measured: {outcome.detail}")
            rows.append((outcome.tokens_computed, outcome.tokens_written))
            seconds.append(now - began)
            began = now
    computed = {row[0] for row in rows}
    if len(computed) < 2:
        raise ValueError("the calls are all of one length, so two rates cannot be told apart; measure more responses")
    fitted, *_ = np.linalg.lstsq(np.array(rows, dtype=float), np.array(seconds), rcond=None)
    prefill_s, decode_s = (max(0.0, float(rate)) for rate in fitted)
    return Rates(name, prefill_s, decode_s, 0, f"measured on this machine over {len(rows)} calls")
