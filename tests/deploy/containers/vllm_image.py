"""A stand-in for vLLM's image, to build the image `judge` on: all of it except CUDA, PyTorch and vLLM.

Its layout follows the Dockerfile of the pinned version, which the source release of vLLM 0.32.0 has: Python 3.12 in
/usr, which programs find as python3; the packages of the distribution in /usr/lib/python3/dist-packages, among them
PyGObject without the pycairo that it requires; pip, and what vLLM needs, in /usr/local/lib/python3.12/dist-packages;
root as the user, another user with the number 2000, and `vllm serve` as the entry point. Only packages that Adjudge
imports too are installed.
"""

import os
import platform
import runpy
import shutil
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile

from tests.deploy.containers.base_images import copy_how_registries_are_reached, copy_python, finish, start
from tests.deploy.containers.podman import buildah, has_image, run
from tests.deploy.tools import ROOT

VLLM_IMAGE = "localhost/adjudge-test-vllm:0.32.0"
PYTHON = "python3.12"
OF_VLLM = f"/usr/local/lib/{PYTHON}/dist-packages"
OF_THE_DISTRIBUTION = "/usr/lib/python3/dist-packages"

_INSTALL = f"""\
set -eu
python3 -m venv /tmp/venv
/tmp/venv/bin/pip install --quiet --no-cache-dir --no-compile --no-deps --only-binary :all: --require-hashes \
    --target {OF_VLLM} --requirement /tmp/given.txt
/tmp/venv/bin/pip install --quiet --no-cache-dir --no-compile --target {OF_VLLM} pip
rm -r /tmp/venv /tmp/given.txt
useradd --uid 2000 --gid 0 --create-home --home-dir /home/vllm --shell /bin/bash vllm
"""


@cache
def python_3_12() -> Path | None:
    """Find a CPython 3.12 on the path or among pyenv's."""
    on_path = [Path(found) for found in [shutil.which(PYTHON)] if found]
    of_pyenv = sorted(Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob(f"versions/3.12.*/bin/{PYTHON}"))
    for candidate in (*on_path, *of_pyenv):
        if run(candidate, "-c", "import ssl, sqlite3, ensurepip", check=False).returncode == 0:
            return candidate
    return None


def given() -> str:
    """Return the requirements, with hashes, that vLLM's image provides for Adjudge.

    The versions are those in which vLLM and Adjudge fit together, as in the lock of the image `judge`.
    """
    lock = runpy.run_path(str(ROOT / "docker/lock.py"))
    target = (lock["VLLM_PYTHON"], f"{lock['PROCESSORS'][processor()]}-manylinux_{lock['VLLM_GLIBC']}")
    of_vllm = lock["resolve"]([lock["VLLM"]], *target)
    together = lock["resolve"]([lock["VLLM"], *lock["SERVICE"]], *target)
    with NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as constraints:
        constraints.writelines(entry.partition(" ")[0] + "\n" for entry in together.values())
        constraints.flush()
        needed = lock["resolve"](lock["SERVICE"], *target, "--constraint", constraints.name)
    return "".join(entry for name, entry in together.items() if name in of_vllm and name in needed)


def processor() -> str:
    """Return the name of this machine's processor, as in image names."""
    return {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


def make_vllm_image() -> None:
    """Make the image, unless it exists."""
    if has_image(VLLM_IMAGE):
        return
    python = python_3_12()
    assert python is not None
    container, mounted = start("python3-gi", "python3-dbus")
    copy_python(python, mounted / "usr")
    program = mounted / "usr/bin/python3"
    program.unlink()
    program.symlink_to(PYTHON)
    paths = mounted / f"usr/lib/{PYTHON}/site-packages/dist-packages.pth"
    paths.parent.mkdir()
    paths.write_text(f"{OF_VLLM}\n{OF_THE_DISTRIBUTION}\n", encoding="utf-8")
    run("ldconfig", "-r", mounted)
    variables = copy_how_registries_are_reached(mounted)
    if variables:
        buildah("config", *variables, container)
    (mounted / "tmp/given.txt").write_text(given(), encoding="utf-8")
    buildah("run", "--network=host", container, "--", "sh", "-c", _INSTALL)
    finish(
        container, VLLM_IMAGE, "--entrypoint", '["vllm", "serve"]', "--workingdir=/vllm-workspace",
        "--env=PATH=/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    )  # fmt: skip
