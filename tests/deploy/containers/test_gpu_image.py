"""The image `judge`, built on a stand-in for vLLM's image that lacks only CUDA, PyTorch and vLLM."""

import json

import pytest

from tests.deploy.containers.base_images import PYTHON_IMAGE, make_base_images
from tests.deploy.containers.podman import inspect, needs_containers, run
from tests.deploy.containers.test_built_images import SETTINGS, in_image, running, wait_until_healthy
from tests.deploy.containers.vllm_image import OF_VLLM, VLLM_IMAGE, make_vllm_image, python_3_12
from tests.deploy.tools import ROOT, needs_tools

pytestmark = [
    needs_containers,
    needs_tools,
    pytest.mark.skipif(python_3_12() is None, reason="no Python 3.12 here, which vLLM's image has"),
    pytest.mark.containers,
    pytest.mark.slow,
]

WHERE = "import sys, {module}; print(sys.version_info[:2], {module}.__file__)"


@pytest.fixture(scope="module")
def judge() -> str:
    """The name of the image `judge`."""
    make_base_images()
    make_vllm_image()
    bases = {"PYTHON_IMAGE": PYTHON_IMAGE, "VLLM_IMAGE": VLLM_IMAGE}
    built = run(ROOT / "docker/build.sh", "judge", BUILDER="buildah", timeout_s=1800, **bases)
    (name,) = [line.split()[1] for line in built.stdout.splitlines() if line.startswith("building adjudge-")]
    return f"localhost/{name}"


def test_the_packages_of_the_base_image_do_not_fit_together(judge: str) -> None:
    assert judge
    check = ["podman", "run", "--rm", "--network=none", "--entrypoint=python3", VLLM_IMAGE, "-m", "pip", "check"]
    complaints = run(*check, check=False)
    assert complaints.returncode == 1
    assert "pygobject" in complaints.stdout


def test_it_runs_adjudge_as_a_user_that_cannot_log_in(judge: str) -> None:
    assert inspect(judge, "image")["Config"]["Entrypoint"] == ["adjudge"]
    assert in_image(judge, "id", "-u").strip() == "10001"
    assert in_image(judge, "grep", "adjudge", "/etc/passwd").strip().endswith("/usr/sbin/nologin")


@pytest.mark.parametrize("module", ["fastapi", "pydantic", "numpy"])
def test_shared_packages_come_from_vllms_image(judge: str, module: str) -> None:
    assert in_image(judge, "python3", "-c", WHERE.format(module=module)).startswith(f"(3, 12) {OF_VLLM}/{module}/")


@pytest.mark.parametrize("module", ["celery", "psycopg", "adjudge_services"])
def test_the_other_packages_are_in_a_separate_environment(judge: str, module: str) -> None:
    assert in_image(judge, "python3", "-c", WHERE.format(module=module)).startswith("(3, 12) /opt/adjudge/lib/")


def test_it_holds_nothing_that_only_its_build_needs(judge: str) -> None:
    assert in_image(judge, "sh", "-c", "ls -d /src /tmp/* 2>/dev/null || true") == ""
    assert in_image(judge, "find", "/opt", "-not", "-user", "root") == ""


def test_the_doctor_finds_nothing_wrong_on_a_read_only_root(judge: str) -> None:
    settings = {"ADJUDGE_ENGINE_URL": "scripted://yes", "ADJUDGE_HOST": "127.0.0.1", "ADJUDGE_DATA_DIR": "/tmp"}
    report = json.loads(in_image(judge, "adjudge", "doctor", "--json", **settings))
    assert {check["result"] for check in report} <= {"ok", "warning"}, report


def test_its_own_health_check_passes_when_it_serves(judge: str) -> None:
    command = ["judge", "--engine", "scripted://yes"]
    with running(judge, *command, ADJUDGE_DATA_DIR="/tmp", **SETTINGS["judge-cpu"]) as name:
        wait_until_healthy(name)


def test_without_settings_it_asks_for_the_folder_of_a_model_for_vllm(judge: str) -> None:
    command = ["podman", "run", "--rm", "--network=none", "--env=ADJUDGE_JUDGE_TOKEN=that-of-the-judge", judge]
    refused = run(*command, check=False)
    assert refused.returncode == 1
    assert "/models/judge is not a folder; vLLM reads" in refused.stderr
