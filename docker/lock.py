"""Writes `docker/locks/`: what each image installs, with the SHA-256 of every file, for amd64 and arm64.

uv resolves with the versions of `constraints.txt`, from wheels only, once for each processor; both must come to the
same versions. The image `judge` starts from vLLM's own: its lock holds only what that does not bring, in versions that
go with it, for that image's Python. The packages of this repository are left out, since images build them from source.

    make deploy-tools && .venv/bin/python docker/lock.py [LOCK ...]
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "docker/locks"
UV = ROOT / ".cache/deploy-tools/venv/bin/uv"
OURS = ["adjudge", "adjudge-client", "adjudge-store", "adjudge-server"]
SERVICE = ["./trainer_client", "./rubric_store", "./judge_server", "./services[otel]"]
WANTED = {
    "build": ["hatchling"],
    "client": ["./trainer_client"],
    "service": SERVICE,
    "judge-cpu": [*SERVICE, "./services[cpu,mirror]"],
}
VLLM = "vllm==0.32.0"
"""The version of the image that `judge` starts from; see VLLM_IMAGE in the Dockerfile."""

PROCESSORS = {"amd64": "x86_64", "arm64": "aarch64"}
PYTHON, GLIBC = "3.11.16", "2_28"
VLLM_PYTHON, VLLM_GLIBC = "3.12.3", "2_35"
"""Of PYTHON_IMAGE, on an older Debian too, and of VLLM_IMAGE, which is an Ubuntu 22.04 or newer."""

Lock = dict[str, str]
"""Requirements by name: `name==version`, and a line for each hash."""


def resolve(wanted: list[str], python: str, platform: str, *options: str) -> Lock:
    """Return what would be installed into an empty environment, without the packages of this repository."""
    command = [
        str(UV), "pip", "compile", "-", "--quiet", "--generate-hashes", "--no-header", "--no-annotate",
        "--only-binary", ":all:", "--python-version", python, "--python-platform", platform, *options,
        *(word for name in OURS for word in ("--no-emit-package", name)),
    ]  # fmt: skip
    resolved = subprocess.run(  # noqa: S603 - uv, with words of this file
        command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, input="\n".join(wanted)
    )
    entries = re.split(r"^(?=[a-z0-9])", resolved.stdout, flags=re.MULTILINE)
    return {entry.partition("==")[0]: entry for entry in entries if "==" in entry}


def resolve_image(image: str, processor: str) -> Lock:
    """Return what an image installs on one processor."""
    machine = PROCESSORS[processor]
    if image != "judge":
        return resolve(WANTED[image], PYTHON, f"{machine}-manylinux_{GLIBC}", "--constraint", "constraints.txt")
    platform = f"{machine}-manylinux_{VLLM_GLIBC}"
    given = resolve([VLLM], VLLM_PYTHON, platform)
    needed = resolve([VLLM, *SERVICE], VLLM_PYTHON, platform)
    return {name: entry for name, entry in needed.items() if name not in given}


def lock(image: str) -> str:
    """Return the text of one lock file."""
    found = {processor: resolve_image(image, processor) for processor in PROCESSORS}
    first, *others = found.values()
    for other in others:
        if first != other:
            differing = sorted({line.split(" ")[0] for line in set(first.values()) ^ set(other.values())})
            sys.exit(f"{image}: these differ between {' and '.join(found)}: {', '.join(differing)}")
    python = VLLM_PYTHON if image == "judge" else PYTHON
    return (
        f"# Written by docker/lock.py, for Python {python} on Linux.\n{''.join(first[name] for name in sorted(first))}"
    )


if __name__ == "__main__":
    if not UV.exists():
        sys.exit(f"there is no {UV.relative_to(ROOT)}; run make deploy-tools")
    LOCKS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or [*WANTED, "judge"]:
        (LOCKS / f"{name}.txt").write_text(lock(name), encoding="utf-8")
        print(f"wrote docker/locks/{name}.txt")
