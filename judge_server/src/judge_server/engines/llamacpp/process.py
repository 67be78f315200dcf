"""The child process that holds a llama.cpp model, seen from its parent: check the weights, start, call, stop."""

import asyncio
import hashlib
import json
import re
import secrets
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import httpx2

from judge_server.engines.openai.http import EndpointError, OpenAIHttp
from judge_server.engines.systemone.engine import DecisionClient, Limits
from judge_server.errors import EngineStartError, EngineUnavailable
from judge_server.models.catalogue import ModelError, parse_model_reference
from judge_server.models.files import check_installed, model_path, models_dir
from judge_server.models.probes import asks_of

START_TIMEOUT_S = 180.0
"""Time to load a file of several gigabytes from a slow disk."""

_KEPT_OUTPUT = 4096
_MAX_OPTIONS = 255
"""The most options that any decision model takes; llama.cpp refuses what is too many for the loaded one."""

_COMPLAINT = re.compile(r"(?<!\d)\d++(?:\.\d{2,3}){3} E +(?:[a-z]+ +)?[a-z_]+: +(.*)$", re.MULTILINE)
"""An error in llama.cpp's log, wherever it begins: other output of the process may stand before it on the line. The
first error is the cause; the others follow from it."""

_REFUSED_ADAPTER = b"failed to load lora adapter"
"""What llama.cpp logs after the cause if that lies in the adapter."""

_ADAPTER_WANTED = "Give ?lora= a LoRA adapter of this model in GGUF, as llama.cpp's convert_lora_to_gguf.py writes it"


class LlamaCppProcess:
    """Runs `judge_server.engines.llamacpp.child`. `http` calls it, with a key that no other process has.

    With `lora`, the file of an adapter, every call uses that adapter; it may be changed while there is no child.
    """

    def __init__(self, *, context_tokens: int, threads: int, lora: Path | None = None) -> None:
        self._context_tokens = context_tokens
        self._threads = threads
        self.lora = lora
        self._child: asyncio.subprocess.Process | None = None
        self._http: httpx2.AsyncClient | None = None
        self._listener: asyncio.Task[None] | None = None
        self._stderr_tail = b""

    @property
    def http(self) -> httpx2.AsyncClient:
        """The client of llama.cpp's HTTP API; raises `EngineUnavailable` before `start`."""
        if self._http is None:
            raise EngineUnavailable("the engine is not started")
        return self._http

    @property
    def pid(self) -> int | None:
        """The child's process id; None if there is no child."""
        return self._child.pid if self._child is not None else None

    async def start(self, model: Path, *, states: bool = False) -> str:
        """Load a model file, and return the build of llama.cpp. With `states`, it gives hidden states and no answers.

        Raises `EngineStartError`.
        """
        key = secrets.token_hex(16)
        settings = {
            "model": str(model),
            "lora": None if self.lora is None else str(self.lora),
            "context_tokens": self._context_tokens,
            "threads": self._threads,
            "key": key,
            "states": states,
        }
        pipe = asyncio.subprocess.PIPE
        self._stderr_tail = b""
        self._child = child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "judge_server.engines.llamacpp.child", stdin=pipe, stdout=pipe, stderr=pipe
        )
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        self._listener = asyncio.create_task(self._listen(child.stderr))
        child.stdin.write(json.dumps(settings).encode() + b"\n")
        try:
            line = await asyncio.wait_for(child.stdout.readline(), START_TIMEOUT_S)
        except TimeoutError:
            line = b""
        ready = json.loads(line or b'{"error": ""}')
        if "error" in ready:
            reason = await self._start_failure(ready["error"])
            if self.lora is not None and _REFUSED_ADAPTER in self._stderr_tail:
                reason = reason.removeprefix("failed to apply lora adapter: ")
                raise EngineStartError(
                    f"llama.cpp could not use the adapter {self.lora} with {model}: {reason}. {_ADAPTER_WANTED}"
                )
            raise EngineStartError(
                f"llama.cpp could not load {model}: {reason}. Check the file with adjudge doctor, free some memory, "
                "lower the engine's ?context=, or choose a smaller model"
            )
        self._http = httpx2.AsyncClient(
            base_url=ready["address"],
            headers={"Authorization": f"Bearer {key}"},
            timeout=httpx2.Timeout(None, connect=5.0),
            trust_env=False,  # no proxy stands before a child process
        )
        return str(ready["build"])

    async def serves_decisions(self) -> bool:
        """Whether the loaded file says that it is a decision model."""
        (card,) = (await self.http.get("/v1/models")).json()["data"]
        return "decisions" in card.get("architecture", {}).get("output_modalities", ())

    async def check_adapter(self) -> None:
        """Raise `EngineStartError` if the loaded adapter works only after certain words, which no prompt has."""
        for adapter in (await self.http.get("/lora-adapters")).json():
            if "alora_invocation_tokens" in adapter:
                raise EngineStartError(
                    f"{self.lora} is an activated LoRA adapter: it works only after "
                    f"{adapter['alora_invocation_string']!r}, which Adjudge does not write. Give ?lora= an ordinary one"
                )

    async def decision_client(self) -> DecisionClient:
        """Return a client of the loaded decision model. Raises `EndpointError` if it does not answer."""
        base_url = f"{str(self.http.base_url).rstrip('/')}/v1"
        key = self.http.headers["Authorization"].removeprefix("Bearer ")
        http = OpenAIHttp(base_url, key, timeout_s=None)
        limits = Limits(options=_MAX_OPTIONS)
        client = DecisionClient(http, f"{base_url}/systemone", "systemone", "", limits)
        try:
            await client.start()
        except EndpointError:
            await http.close()
            raise
        return client

    async def healthy(self) -> bool:
        """Whether the child runs and its HTTP API reports that it is healthy."""
        if self._http is None or self._child is None or self._child.returncode is not None:
            return False
        try:
            return (await self._http.get("/health", timeout=2.0)).status_code == 200
        except httpx2.HTTPError:
            return False

    async def wait(self) -> None:
        """Wait until the started child has exited, for whatever reason."""
        assert self._child is not None
        await self._child.wait()

    async def stop(self) -> None:
        """Kill the child, if it runs, and wait until it has exited; it can be started again."""
        if self._child is not None and self._child.returncode is None:
            self._child.kill()
            await self._child.wait()
        if self._http is not None:
            await self._http.aclose()
        if self._listener is not None:
            await self._listener

    async def _listen(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(_KEPT_OUTPUT):
            self._stderr_tail = (self._stderr_tail + chunk)[-_KEPT_OUTPUT:]

    async def _start_failure(self, error: str) -> str:
        """Return why the child did not start, by its log or else its `error`; stop it if it still tries."""
        assert self._child is not None
        try:
            killed = await asyncio.wait_for(self._child.wait(), 1.0) == -signal.SIGKILL
        except TimeoutError:
            killed = False
        await self.stop()
        output = self._stderr_tail.decode(errors="replace").strip()
        if complaint := _COMPLAINT.search(output):
            return complaint[1].strip()
        if killed:
            return "it was killed while it loaded, probably because memory ran out"
        return error or (output.splitlines()[-1] if output else "it gave no reason")


class Weights(NamedTuple):
    """A checked model file, with the name to report and the SHA-256 of its bytes, in hex.

    With an adapter, name and SHA-256 are those of both. `asks` is the digest of the only question that a probe's file
    answers; '' for any other model.
    """

    name: str
    path: Path
    sha256: str
    asks: str = ""


def locate_weights(reference: str) -> Weights:
    """Find and check the file of a catalogue name, an `hf://` address or a path. Reads the whole file.

    Raises:
        EngineStartError: the file is missing, truncated or altered; the message says what to run.
    """
    try:
        target = parse_model_reference(reference)
        path = target if isinstance(target, Path) else model_path(target, models_dir())
        if not isinstance(target, Path) and not path.is_file():
            raise EngineStartError(
                f"The model {reference} is not on this machine. Fetch it: adjudge models pull {reference}"
            )
        return Weights(target.name, path, check_installed(target, path), asks_of(path))
    except ModelError as error:
        raise EngineStartError(str(error)) from error


def with_adapter(weights: Weights, lora: Path, name: str = "") -> Weights:
    """Check an adapter's file, and return the weights with its name and bytes in their name and SHA-256.

    Its name is that of its file, unless another is given.

    Raises:
        EngineStartError: the file is missing or not GGUF, or the weights are a probe's; llama.cpp checks the rest when
            it loads it.
    """
    if weights.asks:
        raise EngineStartError(
            f"{weights.path} is a probe, which was fitted to its judge without an adapter; leave out ?lora="
        )
    try:
        adapter = check_installed(lora, lora)
    except ModelError as error:
        raise EngineStartError(f"{error} {_ADAPTER_WANTED}") from error
    both = hashlib.sha256(f"{weights.sha256}  model\n{adapter}  adapter\n".encode()).hexdigest()
    return Weights(f"{weights.name}+{name or lora.name}", weights.path, both)
