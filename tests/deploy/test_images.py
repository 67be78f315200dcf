"""The images: their users, commands and health checks, and locks that match the packages' requirements."""

import json
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.deploy import dockerfile
from tests.deploy.tools import ROOT, VENV, needs_tools, run

TARGETS = ["api", "worker", "client", "judge-cpu", "judge"]
SERVERS = {"api": 8000, "worker": 8002, "judge-cpu": 8001, "judge": 8001}
PACKAGES = {
    "client": ["trainer_client"],
    "service": ["trainer_client", "rubric_store", "judge_server", "services"],
    "judge-cpu": ["trainer_client", "rubric_store", "judge_server", "services"],
}
_LOCKED = re.compile(r"(?P<name>[a-z0-9.-]+)==(?P<version>\S+)(?P<hashes>( \\\n    --hash=sha256:[0-9a-f]{64})+)\n")


def locked(name: str) -> dict[str, str]:
    """Return the versions by name in a lock file in which everything is pinned and hashed."""
    text = (ROOT / f"docker/locks/{name}.txt").read_text(encoding="utf-8").partition("\n")[2]
    assert not _LOCKED.sub("", text), f"docker/locks/{name}.txt holds a line that is not pinned and hashed"
    return {canonicalize_name(found["name"]): found["version"] for found in _LOCKED.finditer(text)}


@needs_tools
def test_hadolint_finds_nothing() -> None:
    linted = run(VENV / "bin/hadolint", "docker/Dockerfile")
    assert linted.stdout == ""
    assert linted.returncode == 0


def test_base_images_have_a_version_and_python_images_also_a_digest() -> None:
    bases = dockerfile.arguments()
    for image in bases.values():
        assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+[a-z-]*(@sha256:[0-9a-f]{64})?", image), image
    assert "@sha256:" in bases["PYTHON_IMAGE"]


def test_locks_are_resolved_for_the_python_of_the_base_image() -> None:
    python = dockerfile.arguments()["PYTHON_IMAGE"].partition(":")[2].partition("-")[0]
    for name in ("build", *PACKAGES):
        assert f" for Python {python} " in (ROOT / f"docker/locks/{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("target", TARGETS)
def test_no_image_runs_as_root(target: str) -> None:
    assert dockerfile.last(target, "USER") == "10001:10001"


@pytest.mark.parametrize(("target", "port"), SERVERS.items())
def test_images_that_listen_check_their_health_without_curl(target: str, port: int) -> None:
    check = dockerfile.last(target, "HEALTHCHECK")
    assert check is not None
    command = json.loads(check.partition(" CMD ")[2])
    assert command[1:] == ["/opt/healthcheck.py", f"http://127.0.0.1:{port}/healthz"]
    assert dockerfile.last(target, "EXPOSE") == str(port)


def test_no_stage_takes_a_secret_or_an_argument_that_could_be_a_secret() -> None:
    text = dockerfile.FILE.read_text(encoding="utf-8")
    set_names = re.findall(r"^\s*(?:ENV |ARG )?([A-Z_]+)=", text, re.MULTILINE)
    assert not [name for name in set_names if re.search("SECRET|PASSWORD|TOKEN|KEY", name)]
    assert "ADD " not in text


def test_the_healthcheck_fails_if_nothing_listens() -> None:
    checked = run("python3", ROOT / "docker/healthcheck.py", "http://127.0.0.1:9/healthz")
    assert checked.returncode == 1
    assert "127.0.0.1:9" in checked.stderr


@pytest.mark.parametrize("name", PACKAGES)
def test_every_requirement_of_the_packages_is_locked_at_a_matching_version(name: str) -> None:
    versions = locked(name)
    for package in PACKAGES[name]:
        project = tomllib.loads((ROOT / package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for requirement in map(Requirement, project["dependencies"]):
            if requirement.name.startswith("adjudge"):
                continue
            version = versions.get(canonicalize_name(requirement.name))
            assert version, f"{requirement} is in no line of docker/locks/{name}.txt: run python docker/lock.py {name}"
            assert requirement.specifier.contains(Version(version), prereleases=True)


@pytest.mark.parametrize("name", ["build", *PACKAGES])
def test_images_contain_the_versions_that_the_tests_ran_with(name: str) -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    tested = {canonicalize_name(package): version for package, version in pinned.items()}
    other = {package: (version, tested.get(package)) for package, version in locked(name).items()}
    # pip, which only judge_server requires, is not pinned: an environment has it before anything else.
    assert {package: pair for package, pair in other.items() if pair[0] != pair[1] and package != "pip"} == {}


def test_only_the_cpu_image_has_llamacpp_and_only_vllms_image_has_vllm() -> None:
    assert "xllamacpp" in locked("judge-cpu")
    assert not {"xllamacpp", "torch", "vllm"} & (locked("service").keys() | locked("client").keys())
    assert not {"xllamacpp", "torch", "vllm", "transformers"} & locked("judge").keys()
