"""The engine arguments of a `vllm://` URL: which are accepted or refused, and which enter the fingerprint."""

import json
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from judge_server.engines.vllm.engine import VllmEngine
from judge_server.engines.vllm.loading import VllmSettings, check_names, digest, locate, lora_rank
from judge_server.errors import EngineStartError


def settings(query: str) -> VllmSettings:
    return VllmSettings.of(urlsplit(f"vllm://owner/model?{query}"))


def adapter(folder: Path, rank: object = 12) -> Path:
    """An adapter folder as PEFT writes it."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    return folder


def test_options_become_vllms_engine_arguments(tmp_path: Path) -> None:
    lora = adapter(tmp_path / "math")
    given = settings(
        "quantization=fp8&kv_cache_dtype=fp8_e5m2&max_num_seqs=128&data_parallel=2&gpu_memory=0.8"
        f"&lora={quote(str(lora))}&arg.swap_space=8&arg.enable_expert_parallel=true"
        f"&arg.hf_overrides={quote(json.dumps({'rope_theta': 1e6}))}&arg.tokenizer_mode=slow"
    )
    assert given.engine_arguments() == {
        "quantization": "fp8",
        "kv_cache_dtype": "fp8_e5m2",
        "max_num_seqs": 128,
        "data_parallel_size": 2,
        "gpu_memory_utilization": 0.8,
        "enable_lora": True,
        "max_lora_rank": 16,
        "swap_space": 8,
        "enable_expert_parallel": True,
        "hf_overrides": {"rope_theta": 1e6},
        "tokenizer_mode": "slow",
    }
    assert settings("").engine_arguments() == {}


def test_only_options_that_can_change_verdicts_enter_the_fingerprint() -> None:
    assert settings("").influence == ""
    assert settings("max_num_seqs=8&data_parallel=4&tensor_parallel=2&arg.swap_space=8").influence == ""
    assert settings("quantization=awq").influence == 'quantization="awq"'
    both = settings("arg.seed=7&kv_cache_dtype=fp8").influence
    assert both == 'kv_cache_dtype="fp8"; seed=7'
    assert settings("arg.not_known_yet=1").influence == "not_known_yet=1"


def test_an_adapter_changes_the_weights_digest(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    first, second = adapter(tmp_path / "a", 8), adapter(tmp_path / "b", 16)
    assert len({digest(model), digest(model, first), digest(model, second)}) == 3


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("contex=1", "unknown option 'contex'"),
        ("arg.max_model_len=1", r"set by \?context="),
        ("arg.logprobs_mode=processed_logprobs", "raw probabilities"),
        ("max_num_seqs=0", "max_num_seqs=0: .* greater than 0"),
        ("data_parallel=two", "data_parallel=two: .* valid integer"),
    ],
)
def test_an_option_that_cannot_be_set_is_refused_with_the_reason(query: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        VllmEngine.from_url(urlsplit(f"vllm://owner/model?{query}"))


def test_an_argument_that_vllm_lacks_is_refused_with_the_nearest_one() -> None:
    @dataclass
    class EngineArguments:
        swap_space: float = 4
        seed: int = 0

    check_names(["seed"], EngineArguments)
    with pytest.raises(EngineStartError, match=r"no engine argument 'swap_spaces'; did you mean arg\.swap_space"):
        check_names(["swap_spaces"], EngineArguments)
    with pytest.raises(EngineStartError, match="see vLLM's documentation"):
        check_names(["xyz"], EngineArguments)


@pytest.mark.parametrize("rank", [513, None, "many"])
def test_a_folder_without_a_usable_adapter_is_refused(tmp_path: Path, rank: object) -> None:
    with pytest.raises(EngineStartError, match="adapter"):
        lora_rank(adapter(tmp_path / "a", rank))
    with pytest.raises(EngineStartError, match="holds no LoRA adapter"):
        lora_rank(tmp_path)


def test_a_revision_of_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineStartError, match="no revisions"):
        locate(str(tmp_path), "main")
