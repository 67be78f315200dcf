"""A llama.cpp judge with a LoRA adapter."""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from judge_server.engines import engine_from_url
from judge_server.engines.llamacpp.engine import LlamaCppEngine
from judge_server.engines.llamacpp.process import Weights, with_adapter
from judge_server.errors import CannotLoad, EngineStartError, EngineUnavailable
from judge_server.judging.preparation import judge_fingerprint
from judge_server.judging.questions import JudgingConfig
from judge_server.models import fetch, file_sha256
from judge_server.models.adapters import read_adapter
from judge_server.ports import Batch, EngineIdentity
from tests.judge_server.engines.fixtures import CONTEXT_TOKENS, asked, replies
from tests.judge_server.engines.systemone.decision_fixtures import decision_gguf
from tests.judge_server.engines.test_llamacpp import until_it_says
from tests.judge_server.engines.test_probes import header

__all__ = ["decision_gguf"]

MODEL = "smollm2-135m"
LAYERS, HIDDEN, RANK = 30, 576, 4
LORA = {"general.type": "adapter", "adapter.type": "lora"}
BATCH = asked("Is 7 prime?", "Is 8 prime?")


def adapter(
    path: Path,
    strength: float = 0.5,
    *,
    architecture: str = "llama",
    hidden: int = HIDDEN,
    keys: Mapping[str, str | list[int]] = LORA,
) -> Path:
    """Write an adapter of the small model's query projections, with random weights, in the form of llama.cpp.

    Args:
        path: the file.
        strength: the deviation of the second factors; with 0, the adapter changes nothing.
        architecture, hidden: the model's architecture and width; those of the small model unless given.
        keys: the file's keys beside the architecture and alpha.
    """
    writer, random = gguf.GGUFWriter(path, architecture), np.random.default_rng(1)
    writer.add_float32("adapter.lora.alpha", RANK)
    for key, value in keys.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, sub_type=gguf.GGUFValueType.UINT32)
    for layer in range(LAYERS):
        first = random.normal(0, hidden**-0.5, (RANK, hidden))
        second = strength * random.normal(0, 1, (hidden, RANK))
        writer.add_tensor(f"blk.{layer}.attn_q.weight.lora_a", first.astype(np.float32))
        writer.add_tensor(f"blk.{layer}.attn_q.weight.lora_b", second.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


async def masses(
    model: str, lora: Path | None, batch: Batch = BATCH
) -> tuple[EngineIdentity, NDArray[np.floating[Any]]]:
    """What an engine reports, and its masses; shape (calls, options)."""
    engine = LlamaCppEngine(model, context_tokens=CONTEXT_TOKENS, threads=1, lora=lora)
    try:
        return await engine.start(), np.array([reply.masses for reply in await replies(engine, batch)])
    finally:
        await engine.close()


async def refusal(model: str, lora: Path) -> str:
    """The error with which the engine does not start."""
    engine = LlamaCppEngine(model, context_tokens=CONTEXT_TOKENS, threads=1, lora=lora)
    try:
        with pytest.raises(EngineStartError) as refused:
            await engine.start()
    finally:
        await engine.close()
    return str(refused.value)


def test_the_url_names_an_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    engine = engine_from_url("llamacpp://smollm2-135m?lora=~/math.gguf")
    assert isinstance(engine, LlamaCppEngine)
    assert engine.lora == Path("/home/someone/math.gguf")
    plain = engine_from_url("llamacpp://smollm2-135m")
    assert isinstance(plain, LlamaCppEngine)
    assert plain.lora is None


def test_the_digest_is_that_of_both_files_bytes_and_the_name_says_both(tmp_path: Path) -> None:
    weights = Weights("m", tmp_path / "m.gguf", "0" * 64)
    one, two = adapter(tmp_path / "one.gguf"), adapter(tmp_path / "two.gguf", 0.1)
    found = with_adapter(weights, one)
    assert (found.name, found.path) == ("m+one.gguf", weights.path)
    one.rename(tmp_path / "renamed.gguf")
    assert with_adapter(weights, tmp_path / "renamed.gguf").sha256 == found.sha256
    other_weights = with_adapter(weights._replace(sha256="1" * 64), two)
    assert len({weights.sha256, found.sha256, with_adapter(weights, two).sha256, other_weights.sha256}) == 4


def test_a_missing_file_or_another_format_is_refused_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "adapter_model.safetensors").write_text("something else")
    for name, says in (
        ("missing.gguf", "does not exist"),
        ("adapter_model.safetensors", "does not begin with the bytes GGUF"),
        (".", "cannot be read: Is a directory"),
    ):
        with pytest.raises(EngineStartError, match=rf"{re.escape(str(tmp_path / name))}.*{says}.*convert_lora_to_gguf"):
            with_adapter(Weights("m", tmp_path, "0" * 64), tmp_path / name)


@pytest.mark.model
@pytest.mark.asyncio(loop_scope="session")
async def test_an_adapter_changes_the_masses_and_makes_another_judge(tmp_path: Path) -> None:
    fetch(MODEL)
    files = (None, adapter(tmp_path / "zero.gguf", 0), adapter(tmp_path / "one.gguf"))
    found = [await masses(MODEL, file) for file in files]
    (plain, expected), (_, unchanged), (_, changed) = found
    assert unchanged == pytest.approx(expected, rel=1e-3)
    assert np.abs(np.log(changed / expected)).min() > 0.1
    identities = [identity for identity, _ in found]
    assert [one.model for one in identities] == [MODEL, f"{MODEL}+zero.gguf", f"{MODEL}+one.gguf"]
    assert plain.weights_digest == file_sha256(fetch(MODEL))
    config = JudgingConfig("binary")
    assert len({one.weights_digest for one in identities}) == 3
    assert len({judge_fingerprint(one, ("t",), config) for one in identities}) == 3


@pytest.mark.model
@pytest.mark.asyncio(loop_scope="session")
async def test_a_decision_model_takes_an_adapter(decision_gguf: Path, tmp_path: Path) -> None:
    state = asked("Is 7 prime?")
    (_, plain), (_, unchanged), (_, changed) = [
        await masses(str(decision_gguf), file, state)
        for file in (None, adapter(tmp_path / "zero.gguf", 0), adapter(tmp_path / "one.gguf"))
    ]
    assert unchanged == pytest.approx(plain, abs=1e-3)
    assert np.abs(changed - plain).min() > 0.01


@pytest.mark.model
@pytest.mark.asyncio(loop_scope="session")
async def test_an_adapter_that_does_not_suit_the_model_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = fetch(MODEL)
    control = LORA | {"adapter.type": "control"}
    for file, reason in (
        (adapter(tmp_path / "arch.gguf", architecture="qwen2"), "model arch and LoRA arch mismatch"),
        (adapter(tmp_path / "size.gguf", hidden=896), "tensor 'blk.0.attn_q.weight' has incorrect shape"),
        (adapter(tmp_path / "type.gguf", keys=control), "expect adapter.type to be 'lora', but got: control"),
        (model, "expect general.type to be 'adapter', but got: model"),
    ):
        says = await refusal(MODEL, file)
        assert f"could not use the adapter {file} with {model}: {reason}" in says
        assert "Give ?lora= a LoRA adapter of this model" in says


@pytest.mark.model
@pytest.mark.asyncio(loop_scope="session")
async def test_an_adapter_that_waits_for_words_that_no_prompt_has_is_refused(tmp_path: Path) -> None:
    fetch(MODEL)
    file = adapter(tmp_path / "waits.gguf", keys=LORA | {"adapter.alora.invocation_tokens": [1, 2]})
    assert f"{file} is an activated LoRA adapter" in await refusal(MODEL, file)


async def test_a_probe_takes_no_adapter(tmp_path: Path) -> None:
    probe = tmp_path / "probe.gguf"
    probe.write_bytes(header(adjudge_probe='{"asks": "sha256:question"}'))
    assert "leave out ?lora=" in await refusal(str(probe), adapter(tmp_path / "one.gguf"))


@pytest.mark.model
@pytest.mark.asyncio(loop_scope="session")
async def test_a_child_is_not_restarted_on_a_changed_adapter(tmp_path: Path) -> None:
    fetch(MODEL)
    file, before = adapter(tmp_path / "one.gguf"), set(psutil.Process().children())
    engine = LlamaCppEngine(MODEL, context_tokens=CONTEXT_TOKENS, threads=1, lora=file)
    await engine.start()
    try:
        adapter(file, 2)
        (child,) = set(psutil.Process().children()) - before
        child.kill()
        assert f"{file} has changed; restart the service" in await until_it_says(engine, "has changed")
    finally:
        await engine.close()


@pytest.mark.model
@pytest.mark.asyncio(loop_scope="session")
async def test_adapters_are_loaded_while_the_engine_runs_and_leave_no_trace(tmp_path: Path) -> None:
    fetch(MODEL)
    one, two = adapter(tmp_path / "one.gguf"), adapter(tmp_path / "two.gguf", 0.3)
    wrong, again = adapter(tmp_path / "wrong.gguf", hidden=896), adapter(tmp_path / "again.gguf")
    engine = LlamaCppEngine(MODEL, context_tokens=CONTEXT_TOKENS, threads=1)
    found = {}
    try:
        base = await engine.start()
        for name, file in (("base", None), ("one", one), ("two", two), ("again", again), ("none", None)):
            identity = await engine.load(None if file is None else read_adapter(file, name), name)
            found[name] = identity, [reply.masses for reply in await replies(engine, BATCH)]
            if name == "two":
                with pytest.raises(CannotLoad, match="incorrect shape"):
                    await engine.load(read_adapter(wrong, "wrong"), "wrong")
                assert [reply.masses for reply in await replies(engine, BATCH)] == found["two"][1]
    finally:
        await engine.close()
    assert found["base"] == found["none"]
    assert found["base"][0] == base
    assert found["one"] == found["again"]
    assert len({repr(masses) for _, masses in found.values()}) == 3
    assert len({identity.weights_digest for identity, _ in found.values()}) == 3


@pytest.mark.model
@pytest.mark.asyncio(loop_scope="session")
async def test_a_child_that_dies_comes_back_with_the_adapter_that_was_loaded(tmp_path: Path) -> None:
    fetch(MODEL)
    before = set(psutil.Process().children())
    engine = LlamaCppEngine(MODEL, context_tokens=CONTEXT_TOKENS, threads=1)
    await engine.start()
    try:
        await engine.load(read_adapter(adapter(tmp_path / "one.gguf"), "one"), "one")
        masses = [reply.masses for reply in await replies(engine, BATCH)]
        (child,) = set(psutil.Process().children()) - before
        child.kill()
        async with asyncio.timeout(60):
            while child.is_running() or not await engine.ready():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert [reply.masses for reply in await replies(engine, BATCH)] == masses
    finally:
        await engine.close()


@pytest.mark.model
@pytest.mark.asyncio(loop_scope="session")
async def test_an_adapter_that_is_overwritten_in_place_is_another_one_and_a_bad_one_leaves_nothing_to_return_to(
    tmp_path: Path,
) -> None:
    fetch(MODEL)
    file, good = adapter(tmp_path / "one.gguf"), adapter(tmp_path / "good.gguf", 0.2)
    engine = LlamaCppEngine(MODEL, context_tokens=CONTEXT_TOKENS, threads=1)
    await engine.start()
    try:
        first = await engine.load(read_adapter(file, "one"), "one")
        adapter(file, 0.1)
        assert (await engine.load(read_adapter(file, "one"), "two")).weights_digest != first.weights_digest
        adapter(file, hidden=896)
        with pytest.raises(EngineUnavailable, match="cannot be loaded again: their files have changed"):
            await engine.load(read_adapter(file, "one"), "three")
        assert not await engine.ready()
        await engine.load(read_adapter(good, "good"), "four")
        assert (await replies(engine, BATCH))[0].masses is not None
    finally:
        await engine.close()
