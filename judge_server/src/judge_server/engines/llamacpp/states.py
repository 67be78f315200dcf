"""Hidden states from llama.cpp: a file with a model's lower layers, loaded as an embedding model."""

from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from numpy.typing import NDArray

from judge_server.engines.llamacpp.process import LlamaCppProcess
from judge_server.errors import EngineUnavailable


class HiddenStates:
    """Reads the states at the last token of prompts, normalised to a root mean square of 1.

    Every prompt is read from its beginning: llama.cpp keeps no prefix of an embedding model's prompts.
    """

    def __init__(self, *, context_tokens: int, threads: int) -> None:
        self._process = LlamaCppProcess(context_tokens=context_tokens, threads=threads)

    async def start(self, model: Path) -> None:
        """Load a file that `LayeredModel.write_states` wrote. Raises `EngineStartError`."""
        await self._process.start(model, states=True)

    async def of(self, prompt: list[int]) -> NDArray[np.floating[Any]]:
        """Return the state after a prompt's last token; shape (hidden,).

        Raises:
            EngineUnavailable: llama.cpp gave none, for example since the prompt is longer than the context.
        """
        try:
            answer = await self._process.http.post("/v1/embeddings", json={"input": prompt})
        except httpx2.HTTPError as error:
            raise EngineUnavailable(f"llama.cpp gave no states: {error or type(error).__name__}") from error
        if answer.status_code != 200:
            raise EngineUnavailable(f"llama.cpp gave no states: HTTP {answer.status_code}: {answer.text[:200]}")
        return np.asarray(answer.json()["data"][0]["embedding"], dtype=float).ravel()

    async def close(self) -> None:
        """Stop the process."""
        await self._process.stop()
