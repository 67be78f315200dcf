"""A probe's file made from a real model, with a direction along its states: what fitting gives, without labels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from judge_server.engines.llamacpp.engine import LlamaCppEngine
from judge_server.engines.llamacpp.states import HiddenStates
from judge_server.evaluation.metrics import Floats
from judge_server.models import fetch
from judge_server.models.probes import LayeredModel
from judge_server.ports import Batch, Engine, Reply
from tests.judge_server.engines.fixtures import NO, YES, answers

ABOUT = {"asks": "sha256:question", "labels": 16}


async def check_answers(engine: Engine, batches: Sequence[Batch], odds: Floats, *, apart: float) -> list[Reply]:
    """Start an engine with a written probe, and check its log-odds of each call; return the replies. Closes it."""
    identity = await engine.start()
    try:
        assert identity.asks == ABOUT["asks"]
        outcomes = [outcome for batch in batches for outcome in await answers(engine, batch)]
    finally:
        await engine.close()
    replies = [outcome for outcome in outcomes if isinstance(outcome, Reply)]
    assert len(replies) == len(outcomes)
    for reply, expected in zip(replies, odds, strict=True):
        assert reply.masses is not None
        assert sum(reply.masses) == pytest.approx(1.0, abs=1e-3)
        assert np.log(reply.masses[0] / reply.masses[1]) == pytest.approx(expected, abs=apart)
    return replies


async def written_probe(
    name: str, layers: int, batches: Sequence[Batch], folder: Path, *, context_tokens: int
) -> tuple[Path, Floats, Any]:
    """Write a probe of a model; return its file, the log-odds that it should give for each call, and the states."""
    model = LayeredModel(fetch(name))
    whole = LlamaCppEngine(name, context_tokens=context_tokens, threads=1)
    await whole.start()
    try:
        prompts = [await whole.prompt_tokens(batch, call) for batch in batches for call in batch.calls]
        yes, no = [await whole.option_token(option) for option in (YES, NO)]
    finally:
        await whole.close()
    model.write_states(folder / "states.gguf", layers)
    reader = HiddenStates(context_tokens=context_tokens, threads=1)
    await reader.start(folder / "states.gguf")
    try:
        states = np.stack([await reader.of(prompt) for prompt in prompts])
    finally:
        await reader.close()
    mean, spread = states.mean(axis=0), states - states.mean(axis=0)
    direction = np.random.default_rng(1).normal(0, 1, len(spread)) @ spread
    direction *= 2 / (spread @ direction).std()
    direction -= mean * (mean @ direction) / (mean @ mean)
    file = folder / "probe.gguf"
    model.write_probe(file, layers, direction, mean, (yes, no), ABOUT)
    return file, states @ direction, states
