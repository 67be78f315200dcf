"""A probe's file, converted, answers in vLLM as it does in llama.cpp."""

from pathlib import Path

import pytest

from judge_server.engines.vllm.engine import VllmEngine
from judge_server.models.convert import convert
from tests.judge_server.engines.fixtures import MODEL, asked
from tests.judge_server.engines.probe_files import check_answers, written_probe
from tests.vllm.conftest import CONTEXT_TOKENS, SETTINGS

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

TEXTS = ("7 is prime.\n", "The sea is blue.\n", "Bonjour à tous.\n")


async def test_a_converted_probe_gives_the_probabilities_of_the_file(small_cache: None, tmp_path: Path) -> None:
    batches = [asked("Is it?", "Is it about numbers?", shared=text) for text in TEXTS]
    file, odds, _ = await written_probe(MODEL, 8, batches, tmp_path, context_tokens=CONTEXT_TOKENS)
    assert convert(str(file), tmp_path / "probe")
    engine = VllmEngine(str(tmp_path / "probe"), SETTINGS)
    await check_answers(engine, batches, odds, apart=0.4)
