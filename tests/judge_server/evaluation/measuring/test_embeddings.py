"""Semantic distance: embeddings of an endpoint, and what fails without them."""

import sys
from collections.abc import Iterator
from subprocess import PIPE, Popen
from typing import Any

import pytest

from judge_server.engines.openai.http import EndpointError
from judge_server.evaluation.measuring.embeddings import EmbeddingEndpoint, semantic_distances
from judge_server.models.downloads import fetch
from tests.fixtures.embeddings import embedding_server

LLAMACPP = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.embedding, params.fit_params, params.ui = sys.argv[1], True, False, False
params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
params.n_ctx, params.n_parallel, params.hostnames, params.port, params.verbosity = 512, 1, ["127.0.0.1"], 0, 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
import os
os._exit(0)
"""
"""llama.cpp's server with an embedding model; it exits when its standard input closes."""


@pytest.fixture(scope="module")
def llamacpp_embeddings() -> Iterator[str]:
    """The URL of a llama.cpp server that embeds with the small judge model."""
    command = [sys.executable, "-c", LLAMACPP, str(fetch("qwen2.5-coder-0.5b"))]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "llama.cpp's server did not start"
        yield f"openai+{address}/v1"
        assert process.stdin is not None
        process.stdin.close()


async def test_embeddings_keep_the_order_of_the_texts_over_several_requests() -> None:
    texts = [f"{'a' * n}b" for n in range(20)]
    with embedding_server() as server:
        endpoint = EmbeddingEndpoint.from_url(f"{server.url}?model=small", api_key="sk-1")
        found = await endpoint.embeddings(texts)
        await endpoint.close()
    assert [vector[:2] for vector in found] == [[float(n), 1.0] for n in range(20)]
    assert [len(body["input"]) for _, _, body in server.asked] == [16, 4]
    path, key, body = server.asked[0]
    assert (path, key, body["model"]) == ("/v1/embeddings", "Bearer sk-1", "small")


async def test_distances_are_computed_within_each_problem() -> None:
    problems = [["ab", "AB."], ["aa", "b", "c"], ["a", "", " "], ["broken", "b"], ["a", "7"]]
    with embedding_server() as server:
        endpoint = EmbeddingEndpoint.from_url(server.url)
        same, apart, single, failed, without = await semantic_distances(endpoint, problems, concurrency=2)
        await endpoint.close()
    assert same == pytest.approx(0.0)
    assert apart == pytest.approx(1.0)
    assert single is None
    assert "HTTP 500: it is broken" in str(failed)
    assert "has no direction" in str(without)


@pytest.mark.parametrize(
    ("status", "said", "why"),
    [
        (200, {"data": [{"index": 0, "embedding": [1.0]}]}, "1 embeddings for 2 texts"),
        (200, {"choices": []}, "no embeddings .*data"),
        (200, [], "not a JSON object"),
        (401, {}, "requires a key .* ADJUDGE_ENGINE_API_KEY"),
        (404, {"error": {"message": "no such route"}}, "HTTP 404: no such route"),
    ],
)
async def test_an_unusable_answer_is_reported_with_the_reason(status: int, said: Any, why: str) -> None:
    with embedding_server(lambda _: (status, said)) as server:
        endpoint = EmbeddingEndpoint.from_url(server.url)
        with pytest.raises(EndpointError, match=why):
            await endpoint.embeddings(["a", "b"])
        await endpoint.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://127.0.0.1:1/v1", "write openai[+]http://HOST:PORT/v1"),
        ("openai+http://", "names no server"),
        ("openai+http://h/v1?key=sk-1", "must not hold a key"),
        ("openai+http://h/v1?modle=m", "unknown option 'modle'"),
    ],
)
def test_a_url_of_another_form_is_refused_with_the_right_one(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        EmbeddingEndpoint.from_url(url)
    assert "sk-1" not in str(refused.value)


@pytest.mark.model
async def test_a_real_model_puts_texts_of_one_meaning_closer_together(llamacpp_embeddings: str) -> None:
    alike = ["The cat sat on the mat.", "A cat was sitting on a mat."]
    unlike = ["The cat sat on the mat.", "Integrate by parts and simplify: x e^x - e^x + C."]
    endpoint = EmbeddingEndpoint.from_url(llamacpp_embeddings)
    near, far, too_long = await semantic_distances(endpoint, [alike, unlike, ["x " * 2000, "y"]], concurrency=1)
    await endpoint.close()
    assert isinstance(near, float)
    assert isinstance(far, float)
    assert 0 < near < far < 1
    assert "too large" in str(too_long)
