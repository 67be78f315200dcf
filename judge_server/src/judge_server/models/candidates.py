"""Models that can judge, beyond those of the catalogue, and which of them suits a machine.

Facts are those of the models' cards and of their files on the hub, read in November 2026. What was not run here is
marked untested: a larger and newer model is probably a better judge, but was not measured with these prompts.
`adjudge bakeoff` measures it.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from judge_server.models.catalogue import CATALOGUE, HubFile, SourceFailed
from judge_server.models.downloads import look_up
from judge_server.models.files import format_bytes

Runner: TypeAlias = Literal["llama.cpp", "vLLM"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model in the format of one engine.

    Attributes:
        name: what tables call it.
        runner: the engine that runs it: llama.cpp on the CPU, vLLM on a GPU.
        file: the file on the hub (for vLLM, a file that the repository must have); None for a model of the catalogue.
        size: bytes of the weights.
        context: the longest prompt, in tokens.
        licence: the licence of the weights.
        note: what to know about it.
        measured: what was measured with it; empty if it was never run here.
        obstacle: why it is not recommended; empty if nothing speaks against it.
        template: the set of prompt templates in the form that it expects; empty for the default set.
    """

    name: str
    runner: Runner
    file: HubFile | None
    size: int
    context: int
    licence: str
    note: str = ""
    measured: str = ""
    obstacle: str = ""
    template: str = ""

    @property
    def engine_url(self) -> str:
        """What `--engine` and `--judge` take."""
        if self.file is None:
            return f"llamacpp://{self.name}"
        if self.runner == "vLLM":
            return f"vllm://{self.file.repository}"
        return f"llamacpp://hf/{self.file.repository}/{self.file.file}"

    @property
    def fetch_command(self) -> str | None:
        """The command that fetches it; None for vLLM, which fetches what it loads."""
        if self.runner == "vLLM":
            return None
        return f"adjudge models pull {self.name if self.file is None else self.file.name}"


_REASONS = "reasons before every answer, so it is slow; with --think-tokens 512 it can judge"


def _catalogued(name: str, measured: str) -> Candidate:
    model = next(one for one in CATALOGUE if one.name == name)
    return Candidate(name, "llama.cpp", None, model.size, 32_768, model.licence, model.note, measured)


CANDIDATES: tuple[Candidate, ...] = (
    Candidate(
        "gpt-oss-120b", "vLLM", HubFile("openai/gpt-oss-120b", "config.json"), 63_387_346_464, 131_072,
        "Apache-2.0", "MXFP4, 5.1 billion parameters active; a gold judge, or the large one of a cascade",
        obstacle=_REASONS,
    ),
    Candidate(
        "clef", "llama.cpp", HubFile("ggml-org/Clef-GGUF", "Clef-Q4_K_M.gguf"), 19_232_219_200, 16_384,
        "Apache-2.0", "a decision model: typed questions, no text", obstacle="slow on a CPU",
    ),
    Candidate(
        "gpt-oss-20b", "vLLM", HubFile("openai/gpt-oss-20b", "config.json"), 13_760_000_000, 131_072, "Apache-2.0",
        "MXFP4, 3.6 billion parameters active", obstacle=_REASONS,
    ),
    Candidate(
        "qwen3.5-4b", "vLLM", HubFile("Qwen/Qwen3.5-4B", "config.json"), 8_400_000_000, 262_144, "Apache-2.0",
        "thinks by default; Adjudge switches that off",
    ),
    Candidate(
        "qwen3.5-2b", "vLLM", HubFile("Qwen/Qwen3.5-2B", "config.json"), 4_000_000_000, 262_144, "Apache-2.0",
    ),
    Candidate(
        "granite-guardian-4.1-8b", "vLLM", HubFile("ibm-granite/granite-guardian-4.1-8b", "config.json"),
        16_760_000_000, 131_072, "Apache-2.0", "trained to check criteria; English only",
        template="granite-guardian",
    ),
    Candidate(
        "qwen3.5-4b", "llama.cpp", HubFile("unsloth/Qwen3.5-4B-GGUF", "Qwen3.5-4B-Q4_K_M.gguf"), 2_740_937_888,
        262_144, "Apache-2.0", "thinks by default; Adjudge switches that off",
    ),
    Candidate(
        "kev-4b", "llama.cpp", HubFile("ggml-org/Kev-4B-GGUF", "Kev-4B-Q4_K_M.gguf"), 3_033_489_824, 65_536,
        "Apache-2.0", "a decision model: typed questions, no text; English only",
    ),
    Candidate(
        "granite-4.0-micro", "llama.cpp",
        HubFile("ibm-granite/granite-4.0-micro-GGUF", "granite-4.0-micro-Q4_K_M.gguf"), 2_099_502_528, 131_072,
        "Apache-2.0", "with ?lora= and its LoRA for checking requirements: --template granite-requirements",
    ),
    Candidate(
        "qwen3.5-2b", "llama.cpp", HubFile("unsloth/Qwen3.5-2B-GGUF", "Qwen3.5-2B-Q4_K_M.gguf"), 1_280_835_840,
        262_144, "Apache-2.0",
    ),
    _catalogued("qwen2.5-coder-1.5b", "Mean balanced accuracy 0.68 over ten tasks (docs/studies/agreement.md)"),
    _catalogued("qwen2.5-coder-0.5b", "Close to chance on most tasks (docs/studies/agreement.md)"),
)  # fmt: skip
"""The models, the one to prefer first."""

SHARE_OF_MEMORY: Mapping[Runner, float] = {"llama.cpp": 2 / 3, "vLLM": 0.85}
"""The most of a memory that weights may take; the prefix cache, and on a CPU everything else, need the rest."""

TOKENS_PER_SECOND_AND_CORE = 25.0
"""Prompt tokens a second that llama.cpp reads on one core with a gigabyte of weights: the 1.5B, on two cores, 2026."""

SLOWEST = 40.0
"""Prompt tokens a second below which a judge on a CPU is too slow to be recommended before a smaller one."""


class Machine(NamedTuple):
    """What a judge can use: CPU cores, bytes of memory, and of each GPU's memory."""

    cores: int
    memory: int
    gpus: tuple[int, ...] = ()

    def __str__(self) -> str:
        gpus = f"GPU memory {', '.join(map(format_bytes, self.gpus))}" if self.gpus else "no GPU"
        return f"{self.cores} cores, {format_bytes(self.memory)} of memory, {gpus}"


class Fit(NamedTuple):
    """Whether a candidate suits a machine.

    Attributes:
        candidate: the model.
        problem: why it does not; empty if it does.
        tokens_per_second: an estimate of the prompt tokens that a CPU reads a second; None for a GPU.
    """

    candidate: Candidate
    problem: str
    tokens_per_second: float | None


def this_machine() -> Machine:
    """Measure the machine: the cores that this process may use, its memory, and that of the GPUs in nvidia-smi."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(cores, memory, _gpus())


def _gpus() -> tuple[int, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    asked = [program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=20).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple([int(line) * 2**20 for line in found.split() if line.isdecimal()])


def why_not_on_hub(candidate: Candidate) -> str:
    """Ask the hub for a candidate's file; return why it cannot be had, or an empty text."""
    if candidate.file is None:
        return ""
    try:
        look_up(candidate.file)
    except SourceFailed as error:
        return f"hub: {error}"
    return ""


def fits(
    machine: Machine, why_absent: Callable[[Candidate], str], candidates: Sequence[Candidate] = CANDIDATES
) -> list[Fit]:
    """Return whether each candidate suits a machine.

    Args:
        machine: the machine.
        why_absent: why a candidate cannot be fetched, or an empty text; asked of those that suit the machine otherwise.
        candidates: the models, the one to prefer first.
    """
    found = []
    for one in candidates:
        on_gpu = one.runner == "vLLM"
        memory = max(machine.gpus, default=0) if on_gpu else machine.memory
        speed = None if on_gpu else TOKENS_PER_SECOND_AND_CORE * machine.cores * 1e9 / one.size
        problem = one.obstacle
        if on_gpu and not machine.gpus:
            problem = "needs a GPU"
        elif one.size > SHARE_OF_MEMORY[one.runner] * memory:
            problem = "too large for the memory"
        problem = problem or why_absent(one)
        found.append(Fit(one, problem, speed))
    return found


def recommended(found: Sequence[Fit]) -> Fit | None:
    """Return the first candidate that suits the machine and is fast enough, else the fastest; None if none suits."""
    suiting = [one for one in found if not one.problem]
    quick = [one for one in suiting if one.tokens_per_second is None or one.tokens_per_second >= SLOWEST]
    if quick:
        return quick[0]
    return max(suiting, key=lambda one: one.tokens_per_second or 0.0, default=None)
