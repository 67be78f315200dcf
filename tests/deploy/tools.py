"""The paths of the tools that check images, compose files and the chart, and a function that runs one."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".cache/deploy-tools"
VENV = TOOLS / "venv"
CHECKOV = TOOLS / "checkov"
HELM = TOOLS / "helm"
HELM_3 = TOOLS / "helm-3.17"
OPERATORS = TOOLS / "operators"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")

needs_tools = pytest.mark.skipif(
    not (TOOLS / "stamp").exists(), reason="needs the tools that make check-deploy fetches"
)


def run(
    *command: str | Path, env: dict[str, str] | None = None, stdin: str | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a tool in the root folder, with text output; of this process's environment it gets only PATH."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(TOOLS), **(env or {})}
    return subprocess.run(
        [str(part) for part in command],
        cwd=ROOT, env=environment, input=stdin, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
