"""vLLM's engine arguments in a `vllm://` URL: those with an option of their own, and any other as `?arg.NAME=VALUE`.

What can change a verdict enters the judge's fingerprint. Of an argument that this module does not know it is assumed to
change verdicts: a fingerprint that changes needlessly costs some cached verdicts, one that stays costs trust.
"""

import dataclasses
import difflib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from judge_server.errors import EngineStartError

ARGUMENT_PREFIX = "arg."

SET_BY_ADJUDGE = {
    "model": "the path of the URL",
    "max_model_len": "?context=",
    "gpu_memory_utilization": "?gpu_memory=",
    "dtype": "?dtype=",
    "enforce_eager": "?eager=1",
    "tensor_parallel_size": "?tensor_parallel=",
    "data_parallel_size": "?data_parallel=",
    "revision": "?revision=",
    "quantization": "?quantization=",
    "max_num_seqs": "?max_num_seqs=",
    "kv_cache_dtype": "?kv_cache_dtype=",
    "enable_lora": "?lora=",
    "max_lora_rank": "?lora=, whose adapter says its rank",
    "enable_prefix_caching": "nothing: verdicts of a response share its prefix",
    "logprobs_mode": "nothing: verdicts are read from raw probabilities",
    "structured_outputs_config": "nothing: replies are held to their form by it",
    "use_tqdm_on_load": "nothing",
}
"""Arguments that `arg.` does not take, and what sets each of them."""

WITHOUT_INFLUENCE = frozenset(
    {
        "async_scheduling",
        "cpu_offload_gb",
        "disable_custom_all_reduce",
        "disable_log_stats",
        "distributed_executor_backend",
        "download_dir",
        "max_parallel_loading_workers",
        "num_gpu_blocks_override",
        "safetensors_load_strategy",
        "swap_space",
    }
)
"""Arguments that do not change what the model answers."""


def read_arguments(given: Mapping[str, str]) -> dict[str, JsonValue]:
    """Read the values of arguments: JSON where a text is JSON, such as `true`, `8` and `{"a": 1}`, and else the text.

    Raises:
        ValueError: Adjudge sets the argument itself; the message says by what.
    """
    for name in given:
        if name in SET_BY_ADJUDGE:
            raise ValueError(f"{ARGUMENT_PREFIX}{name} cannot be set; it is set by {SET_BY_ADJUDGE[name]}")
    return {name: _value(text) for name, text in given.items()}


def check_names(arguments: Mapping[str, JsonValue], engine_arguments: Any) -> None:
    """Refuse arguments that this version of vLLM does not have.

    Args:
        arguments: the arguments by name.
        engine_arguments: vLLM's dataclass of them.

    Raises:
        EngineStartError: an argument is unknown; the message names a similar one.
    """
    known = [field.name for field in dataclasses.fields(engine_arguments)]
    for name in arguments:
        if name not in known:
            similar = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {ARGUMENT_PREFIX}{similar[0]}?" if similar else "see vLLM's documentation of them"
            raise EngineStartError(f"This version of vLLM has no engine argument {name!r}; {hint}")


def influence(arguments: Mapping[str, JsonValue]) -> str:
    """Return the arguments that can change a verdict, as a text for the fingerprint; empty if there are none."""
    counted = {name: value for name, value in sorted(arguments.items()) if name not in WITHOUT_INFLUENCE}
    return "; ".join(f"{name}={json.dumps(value, sort_keys=True)}" for name, value in counted.items())


def _value(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return text
    return value
