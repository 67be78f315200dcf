"""Adapters of a vLLM server: each is loaded under a name that only its content has, and asked as a model.

Source: vLLM, `vllm/entrypoints/serve/lora/api_router.py` and `docs/features/lora.md`. The route is there only with
VLLM_ALLOW_RUNTIME_LORA_UPDATING=1. The server reads the adapter from the same path, and drops the adapters that were
not used for the longest time by itself. So none is unloaded here, where another judge may still ask it.
"""

import asyncio
from contextlib import suppress
from http import HTTPStatus

from judge_server.engines.openai.completions import parse_error_body
from judge_server.engines.openai.http import EndpointError, OpenAIHttp
from judge_server.errors import CannotLoad
from judge_server.models.adapters import require_unchanged
from judge_server.ports import Adapter

_HINT = "start vLLM with --enable-lora, a --max-lora-rank that suffices, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
_LOADED = "has already been loaded"


async def load_adapter(http: OpenAIHttp, adapter: Adapter) -> str:
    """Have the server load an adapter, unless it has it; return the name to ask it by. Raises `CannotLoad`."""
    name = f"adjudge-{adapter.id}"
    try:
        answer = await http.post(
            f"{http.base_url}/load_lora_adapter", {"lora_name": name, "lora_path": str(adapter.path)}
        )
    except EndpointError as error:
        raise CannotLoad(error.failure.detail) from error
    said = parse_error_body(answer.body).message or ""
    if answer.ok or (answer.status == HTTPStatus.BAD_REQUEST and _LOADED in said):
        await _require_unchanged(http, adapter, name)
        return name
    raise CannotLoad(
        f"the server does not load {adapter.path} (HTTP {answer.status}: {said or 'no reason given'}); {_HINT}, where "
        "the folder of adapters has the same path"
    )


async def _require_unchanged(http: OpenAIHttp, adapter: Adapter, name: str) -> None:
    """Have the server drop an adapter that was written to meanwhile: the name would stand for other content."""
    try:
        await asyncio.to_thread(require_unchanged, adapter)
    except CannotLoad as changed:
        with suppress(EndpointError):
            if (await http.post(f"{http.base_url}/unload_lora_adapter", {"lora_name": name})).ok:
                raise
        raise CannotLoad(f"{changed}. The server has kept what it read, as {name}: restart it") from changed
