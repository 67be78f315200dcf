"""A probe's file made from a real model, with a direction along its states: what fitting gives, without labels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from judge_server.engines.llamacpp.engine import LlamaCppEngine
from judge_server.engines.llamacpp.states import HiddenStates
from judge_server.evaluation.metrics import Floats
from judge_server.models import fetch
from judge_server.models.probes import LayeredModel
from judge_server.ports import Batch
from tests.judge_server.engines import NO, YES

ABOUT = {"asks": "sha256:question", "labels": 16}


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
