"""The Dockerfile's installation steps, run on the same files in a folder instead of an image."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy import dockerfile
from tests.deploy.tools import ROOT, VENV, needs_tools

SERVICE = ["trainer_client", "rubric_store", "judge_server.api", "adjudge_services.wiring", "psycopg", "redis"]
IMPORTS = {
    "client": ["trainer_client", "trainer_client.rewards"],
    "service": SERVICE,
    "judge-cpu": [*SERVICE, "xllamacpp"],
}
ABSENT = {
    "client": ["judge_server", "rubric_store", "adjudge_services", "fastapi", "sqlalchemy", "xllamacpp", "hatchling"],
    "service": ["xllamacpp", "torch", "vllm", "hatchling", "pytest"],
    "judge-cpu": ["torch", "vllm", "hatchling", "pytest"],
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The contents of the stage `source`: its COPY lines, without the files that .dockerignore excludes."""
    folder = tmp_path_factory.mktemp("src")
    for line in dockerfile.stages()["source"].of("COPY"):
        origin, target = line.split()
        files = [ROOT / origin] if (ROOT / origin).is_file() else sorted((ROOT / origin).rglob("*"))
        for file in files:
            if file.is_file() and not dockerfile.ignored(file):
                copied = folder / target / file.relative_to(ROOT / origin)
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, copied)
    return folder


def test_a_build_gets_only_the_files_that_it_needs(source: Path) -> None:
    names = {path.relative_to(source).parts[0] for path in source.rglob("*")}
    assert names == {"docker", "trainer_client", "rubric_store", "judge_server", "services"}
    assert not [path for path in source.rglob("*") if path.name in ("__pycache__", ".env") or path.suffix == ".gguf"]
    assert dockerfile.ignored(ROOT / "docker/.env")
    assert dockerfile.ignored(ROOT / ".git/config")


@pytest.mark.install
@pytest.mark.parametrize("image", IMPORTS)
@pytest.mark.slow
def test_an_image_contains_what_it_runs_and_no_more(image: str, source: Path, tmp_path: Path) -> None:
    (command,) = dockerfile.stages()[f"{image}-built"].of("RUN")
    assert command == f"docker/install.sh {image} /opt/adjudge"
    venv = tmp_path / "adjudge"
    steps = command.replace("/opt/adjudge", str(venv)).split()
    subprocess.run(steps, cwd=source, check=True, timeout=900)
    code = f"""
import importlib, importlib.util, sys
for name in {IMPORTS[image]!r}:
    importlib.import_module(name)
print([name for name in {ABSENT[image]!r} if importlib.util.find_spec(name)])
"""
    report = subprocess.run(
        [venv / "bin/python", "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=120
    )
    assert report.stdout == "[]\n"
    if image != "client":
        helped = subprocess.run([venv / "bin/adjudge", "--help"], check=True, capture_output=True, text=True)
        assert "migrate" in helped.stdout


@needs_tools
@pytest.mark.install
@pytest.mark.slow
@pytest.mark.parametrize("processor", ["x86_64", "aarch64"])
@pytest.mark.parametrize("image", ["build", *IMPORTS, "judge"])
def test_a_lock_has_the_hash_of_a_wheel_of_every_package_for_both_processors(
    image: str, processor: str, tmp_path: Path
) -> None:
    python, glibc = ("3.12", "2_35") if image == "judge" else ("3.11", "2_28")
    install = [
        VENV / "bin/uv", "pip", "install", "--quiet", "--no-cache", "--no-deps", "--require-hashes",
        "--only-binary", ":all:", "--target", tmp_path, "--python-version", python,
        "--python-platform", f"{processor}-manylinux_{glibc}", "--requirement", f"docker/locks/{image}.txt",
    ]  # fmt: skip
    subprocess.run(install, cwd=ROOT, check=True, timeout=600)
    code_for = {e_machine(path) for path in tmp_path.rglob("*.so")}
    assert code_for <= {processor}


def e_machine(library: Path) -> str:
    """Return the processor that a shared library is compiled for, from its ELF header."""
    with library.open("rb") as file:
        header = file.read(20)
    return {62: "x86_64", 183: "aarch64"}[int.from_bytes(header[18:20], "little")]
