"""Podman and buildah for the tests: requirements, configuration, and how to run a command.

`python -m tests.deploy.containers.podman` prints what is missing here, and exits with 1 if anything is.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.tools import ROOT, TOOLS, VENV

PROGRAMS = ["podman", "buildah", "runc", "catatonit", "mmdebstrap", "iptables", "strip"]
NETAVARK = Path("/usr/lib/podman/netavark")
COMPOSE = VENV / "bin/podman-compose"
INSTALL = "apt-get install buildah podman runc catatonit netavark aardvark-dns iptables mmdebstrap binutils"
_CONFIGURATION = """\
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
"""
"""Works with and without systemd. The limits are below those that some hosts refuse to set."""


def missing() -> str:
    """Return what is missing here and how to get it, or an empty text."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent or not NETAVARK.exists():
        return f"{', '.join(absent) or 'netavark'} cannot be found; on Debian: {INSTALL}"
    if os.geteuid() != 0:
        return "only root can make a base image and its networks"
    if not COMPOSE.exists():
        return f"there is no {COMPOSE.relative_to(ROOT)}; run make deploy-tools"
    return ""


needs_containers = pytest.mark.skipif(bool(missing()), reason=f"no containers: {missing()}")


@cache
def environment() -> dict[str, str]:
    """Return the variables for podman and buildah: this process's, and a configuration for the tests."""
    folder = Path(tempfile.mkdtemp(prefix="adjudge-containers-"))
    configuration = folder / "containers.conf"
    configuration.write_text(_CONFIGURATION, encoding="utf-8")
    return {**os.environ, "CONTAINERS_CONF": str(configuration), "BUILDAH_ISOLATION": "chroot"}


def run(
    *command: str | Path, check: bool = True, timeout_s: float = 900, cwd: Path = ROOT, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command with podman's variables; its text output is shown if it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd, env=environment() | variables, capture_output=True, text=True, check=False, timeout=timeout_s,
    )  # fmt: skip
    if check and done.returncode:
        shown = " ".join(str(word) for word in command)
        raise AssertionError(f"{shown}: exit status {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}")
    return done


def podman(*arguments: str | Path, check: bool = True, timeout_s: float = 300) -> str:
    """Run podman; return its output."""
    return run("podman", *arguments, check=check, timeout_s=timeout_s).stdout


def buildah(*arguments: str | Path) -> str:
    """Run buildah; return its output without the last line break."""
    return run("buildah", *arguments).stdout.strip()


def has_image(name: str) -> bool:
    """Whether an image is in local storage."""
    return run("podman", "image", "exists", name, check=False).returncode == 0


def inspect(name: str, kind: str = "container") -> dict[str, Any]:
    """Return podman's description of a container or an image."""
    (found,) = json.loads(podman("inspect", "--type", kind, name))
    answer: dict[str, Any] = found
    return answer


if __name__ == "__main__":
    TOOLS.mkdir(parents=True, exist_ok=True)
    print(missing())
    sys.exit(bool(missing()))
