"""Writes `docker/locks/`: what each image installs, every file by its SHA-256, for linux/amd64.

pip resolves, with the versions of `constraints.txt`. The image `judge` stands on vLLM's own image: its lock holds only
what that does not bring, in versions that go with it, for that image's Python. The packages of this repository are left
out, since images build them from source. It needs pip 25.1 or newer and Python 3.11:

    python docker/lock.py [LOCK ...]
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "docker/locks"
PINNED = ["-c", "constraints.txt"]
PACKAGES = ["./trainer_client", "./rubric_store", "./judge_server", "./services[otel]"]
ENGINE_OF_CPUS = {"xllamacpp"}
"""`adjudge` asks for llama.cpp everywhere, and only one image runs it."""
WANTED = {
    "build": [*PINNED, "hatchling"],
    "client": [*PINNED, "./trainer_client"],
    "service": [*PINNED, *PACKAGES],
    "judge-cpu": [*PINNED, *PACKAGES, "./judge_server[mirror]"],
}
VLLM = ["vllm==0.32.0"]
VLLM_PYTHON = ["--python-version", "3.12", "--target", "never-written"]
"""The version and the Python of the image that `judge` starts from; see VLLM_IMAGE in the Dockerfile."""


def resolve(*wanted: str) -> dict[str, str]:
    """What pip would install into an empty environment: lines of a lock file by name, without local packages."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    resolved = subprocess.run(  # noqa: S603 - pip, with words of this file
        [*pip, "--only-binary", ":all:", *wanted], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return dict(_line(found) for found in json.loads(resolved.stdout)["install"] if not found["is_direct"])


def _line(found: dict[str, Any]) -> tuple[str, str]:
    name = found["metadata"]["name"].lower().replace("_", "-")
    digest = found["download_info"]["archive_info"]["hashes"]["sha256"]
    return name, f"{name}=={found['metadata']['version']} --hash=sha256:{digest}\n"


def lock(image: str) -> str:
    """The text of one lock file: a pinned and hashed requirement a line."""
    if image == "judge":
        given = resolve(*VLLM_PYTHON, *VLLM)
        lines = {name: line for name, line in resolve(*VLLM_PYTHON, *VLLM, *PACKAGES).items() if name not in given}
    else:
        lines = resolve(*WANTED[image])
    left_out = set() if image == "judge-cpu" else ENGINE_OF_CPUS
    python = "3.12" if image == "judge" else "3.11"
    kept = [lines[name] for name in sorted(lines) if name not in left_out]
    return f"# Written by docker/lock.py, for Python {python} on linux/amd64.\n{''.join(kept)}"


if __name__ == "__main__":
    LOCKS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or [*WANTED, "judge"]:
        (LOCKS / f"{name}.txt").write_text(lock(name), encoding="utf-8")
        print(f"wrote docker/locks/{name}.txt")
