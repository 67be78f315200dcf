"""A real decision model for tests: llama.cpp's server with the smallest chat model and two more keys in its file."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from judge_server.engines.llamacpp.process import LlamaCppProcess
from judge_server.models import fetch
from tests.judge_server.engines.openai.fixtures import MODEL
from tests.judge_server.engines.systemone.decision_gguf import make_decision_model

CONTEXT_TOKENS = 600


@dataclass(frozen=True)
class DecisionServer:
    """The root URL and key of a decision server."""

    root: str
    api_key: str


@pytest.fixture(scope="session")
def decision_gguf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file of a decision model."""
    made = make_decision_model(fetch(MODEL), tmp_path_factory.mktemp("decision") / "decision.gguf")
    yield made
    made.unlink()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def decision_server(decision_gguf: Path) -> AsyncIterator[DecisionServer]:
    """llama.cpp's server with the decision model, in a separate process."""
    process = LlamaCppProcess(context_tokens=CONTEXT_TOKENS, threads=1)
    await process.start(decision_gguf)
    key = process.http.headers["Authorization"].removeprefix("Bearer ")
    yield DecisionServer(str(process.http.base_url).rstrip("/"), key)
    await process.stop()
