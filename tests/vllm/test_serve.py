"""The engine for the OpenAI chat API with a real `vllm serve` behind it."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from judge_server.engines.openai.engine import OpenAIEngine
from judge_server.engines.vllm.engine import VllmEngine
from judge_server.ports import (
    Batch,
    Call,
    CallFailure,
    JsonOutput,
    LabelChoice,
    Reasoning,
    SamplingOptions,
    TokenChoice,
)
from tests.fixtures.ports import unused_port
from tests.judge_server.engines.fixtures import NO, YES, YES_NO, answers, asked, identity_of, replies, started
from tests.judge_server.engines.test_contract import VERDICTS, WRITTEN, holds
from tests.vllm.conftest import CONTEXT_TOKENS

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

SHARED = "A response says: 7 is prime, since neither 2 nor 3 divides it.\n"
START_S = 180.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(folder: Path, small_cache: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """`vllm serve` on a free port; returns its base URL."""
    port = unused_port()
    log = tmp_path_factory.mktemp("serve") / "log"
    words = ["serve", str(folder), "--served-model-name", "judge", "--host", "127.0.0.1", "--port", str(port)]
    words += ["--max-model-len", str(CONTEXT_TOKENS), "--enforce-eager", "--block-size", "32"]
    words += ["--structured-outputs-config", json.dumps({"backend": "guidance", "disable_any_whitespace": True})]
    with log.open("wb") as output:
        server = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("vllm")),
            *words,
            stdout=output,
            stderr=output,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        )
    try:
        await asyncio.wait_for(_listening(server, port), START_S)
        yield f"http://127.0.0.1:{port}/v1"
    except TimeoutError:
        pytest.fail(f"vllm serve did not start: {log.read_text()[-2000:]}")
    finally:
        family = psutil.Process(server.pid).children(recursive=True) if server.returncode is None else []
        if server.returncode is None:
            server.terminate()
        try:
            await asyncio.wait_for(server.wait(), 20)
        except TimeoutError:
            server.kill()
            await server.wait()
        for child in psutil.wait_procs(family, timeout=5)[1]:
            child.kill()


async def _listening(server: asyncio.subprocess.Process, port: int) -> None:
    while server.returncode is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.5)
            continue
        writer.write(b"GET /health HTTP/1.0\r\n\r\n")
        return writer.close()
    raise TimeoutError


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def remote(served: str) -> AsyncIterator[OpenAIEngine]:
    """The engine connected to that server."""
    engine = await started(OpenAIEngine(served))
    yield engine
    await engine.close()


async def test_it_detects_the_capabilities_of_vllm(remote: OpenAIEngine) -> None:
    found = identity_of(remote)
    assert found.model == "judge"
    assert found.context_tokens == CONTEXT_TOKENS
    assert found.capabilities.logprobs
    assert found.capabilities.json_schema
    assert found.capabilities.prefix_in_flight


async def test_its_masses_equal_those_of_the_in_process_engine(remote: OpenAIEngine, engine: VllmEngine) -> None:
    batch = asked("Does it say that 7 is prime?", "Does it say that 9 is prime?", shared=SHARED)
    for there, here in zip(await replies(remote, batch), await replies(engine, batch), strict=True):
        assert there.masses == pytest.approx(here.masses, abs=0.06)


async def test_calls_in_one_request_are_answered_as_each_is_alone(remote: OpenAIEngine) -> None:
    assert remote.endpoint is not None
    assert remote.endpoint.batches
    questions = [f"Does it say that {n} is prime?" for n in range(6)]
    together = await replies(remote, asked(*questions, shared=SHARED))
    alone = [(await replies(remote, asked(question, shared=SHARED)))[0] for question in questions]
    for one, other in zip(together, alone, strict=True):
        assert one.masses == pytest.approx(other.masses, abs=0.06)
        assert one.tokens_written == other.tokens_written
    total = sum(reply.tokens_computed + reply.tokens_reused for reply in together)
    assert total == sum(reply.tokens_computed + reply.tokens_reused for reply in alone)


async def test_a_label_choice_returns_a_label_or_the_text_generated_instead(remote: OpenAIEngine) -> None:
    steps = LabelChoice(("1", "2", "10"), ", step ")
    for reply in await replies(
        remote, asked("Is it?", "Is it not?", answer=TokenChoice((YES, NO), steps), shared=SHARED)
    ):
        assert reply.masses is not None
        assert reply.chosen in steps.labels or (reply.text and not identity_of(remote).capabilities.token_menus)


async def test_json_output_satisfies_its_schema(remote: OpenAIEngine) -> None:
    (reply,) = await replies(remote, asked("Judge it in JSON.", answer=WRITTEN, shared=SHARED))
    assert reply.text is not None
    assert holds(VERDICTS, reply.text)
    (cut,) = await replies(remote, asked("Judge it in JSON.", answer=JsonOutput(WRITTEN.schema, 4), shared=SHARED))
    assert cut.cut


async def test_reasons_precede_the_answer_and_are_reproducible_by_seed(remote: OpenAIEngine) -> None:
    call = Call("Explain it.", YES_NO, Reasoning(16, "Answer yes or no."), sample=SamplingOptions(1.0, 7))
    batch = Batch("Judge.", SHARED, (call,))
    await replies(remote, batch)
    (one,), (other,) = await replies(remote, batch), await replies(remote, batch)
    assert one.reasoning
    assert one.reasoning == other.reasoning
    assert one.masses is not None


async def test_a_prompt_that_is_too_long_is_refused_and_the_next_one_answered(remote: OpenAIEngine) -> None:
    refused, answered = await answers(remote, asked("word " * 3 * CONTEXT_TOKENS, "Is it?", shared=SHARED))
    assert isinstance(refused, CallFailure)
    assert refused.kind == "truncated_input"
    assert not isinstance(answered, CallFailure)
