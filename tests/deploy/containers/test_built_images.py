"""The built images: their user, size, contents and writable folders, and that they serve."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

from tests.deploy.containers.conftest import BUILT
from tests.deploy.containers.podman import inspect, needs_containers, podman, run
from tests.deploy.test_images import SERVERS

pytestmark = [needs_containers, pytest.mark.containers, pytest.mark.slow]

HARDENED = ["--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--tmpfs=/tmp:rw,mode=1777,size=64m"]
MEGABYTE = 10**6
MOST_MEGABYTES = {"api": 300, "worker": 300, "client": 185, "judge-cpu": 335}
COMPILERS = ["cc", "gcc", "g++", "clang", "make", "ld", "cargo", "nvcc"]
WRITABLE = {"/var/lib/adjudge", "/var/cache/adjudge", "/tmp", "/var/tmp", "/run/lock"}
STARTED_BY = {
    "api": ["serve", "--engine", "scripted://yes"],
    "worker": ["worker"],
    "judge-cpu": ["judge", "--engine", "scripted://yes"],
}
SETTINGS = {
    "api": {"ADJUDGE_HOST": "127.0.0.1"},
    "worker": {
        "ADJUDGE_URL": "http://127.0.0.1:8000",
        "ADJUDGE_QUEUE_URL": "redis://127.0.0.1:6379/1",
        "ADJUDGE_SIGNING_SECRET": "of-the-fences-here",
    },
    "judge-cpu": {"ADJUDGE_JUDGE_TOKEN": "that-of-the-judge"},
}


def in_image(image: str, *command: str, **settings: str) -> str:
    """Return the output of a command in a container of an image, hardened as compose and the chart do."""
    variables = [f"--env={name}={value}" for name, value in settings.items()]
    program, *arguments = command
    return podman("run", "--rm", "--network=none", *HARDENED, *variables, f"--entrypoint={program}", image, *arguments)


@contextmanager
def running(image: str, *command: str, **settings: str) -> Iterator[str]:
    """Run a container and remove it at the end; yield its name."""
    name = f"adjudge-test-{uuid4().hex[:8]}"
    variables = [f"--env={key}={value}" for key, value in settings.items()]
    podman("run", "--detach", "--name", name, "--network=none", *HARDENED, *variables, image, *command)
    try:
        yield name
    finally:
        podman("rm", "--force", "--time=0", name)


def wait_until_healthy(name: str) -> None:
    """Run a container's health check until it passes, as Docker's daemon and systemd's timers do."""
    pause = threading.Event()
    for _ in range(240):
        if run("podman", "healthcheck", "run", name, check=False).returncode == 0:
            return
        assert inspect(name)["State"]["Running"], podman("logs", name)
        pause.wait(0.5)
    raise AssertionError(podman("logs", name))


@pytest.mark.parametrize("target", BUILT)
def test_it_runs_as_a_user_that_cannot_log_in(images: dict[str, str], target: str) -> None:
    assert in_image(images[target], "id", "-u").strip() == "10001"
    entry = in_image(images[target], "grep", "adjudge", "/etc/passwd").strip()
    assert entry.endswith("/usr/sbin/nologin")


@pytest.mark.parametrize("target", BUILT)
def test_it_does_not_exceed_its_maximum_size(images: dict[str, str], target: str) -> None:
    size = inspect(images[target], "image")["Size"] / MEGABYTE
    assert size < MOST_MEGABYTES[target], f"{target}: {size:.0f} MB"


@pytest.mark.parametrize("target", BUILT)
def test_every_compiled_module_still_loads_without_its_symbols(images: dict[str, str], target: str) -> None:
    load = (
        "import ctypes, pathlib; found = [str(p) for p in pathlib.Path('/opt/adjudge/lib').rglob('*.so')"
        " if not p.parent.name.endswith('.libs')]; [ctypes.PyDLL(p) for p in found]; print(len(found))"
    )
    assert int(in_image(images[target], "python", "-c", load)) > 0


@pytest.mark.parametrize("target", BUILT)
def test_it_has_no_compiler_and_nothing_that_builds_packages(images: dict[str, str], target: str) -> None:
    look = (
        "import shutil, sys, importlib.util as u; print([p for p in sys.argv[1:] if shutil.which(p) or u.find_spec(p)])"
    )
    assert in_image(images[target], "python", "-c", look, *COMPILERS, "hatchling", "pytest", "torch") == "[]\n"


@pytest.mark.parametrize("target", BUILT)
def test_even_with_a_writable_root_only_its_two_folders_and_the_temporary_ones_can_be_written(
    images: dict[str, str], target: str
) -> None:
    find = ["find", "/", "-xdev", "-type", "d", "-writable", "-not", "-path", "/proc/*"]
    found = podman("run", "--rm", "--network=none", f"--entrypoint={find[0]}", images[target], *find[1:], check=False)
    assert set(found.split()) <= WRITABLE


@pytest.mark.parametrize("target", BUILT)
def test_its_own_files_belong_to_root(images: dict[str, str], target: str) -> None:
    assert in_image(images[target], "find", "/opt", "-not", "-user", "root") == ""


@pytest.mark.parametrize("target", ["api", "worker", "judge-cpu"])
def test_the_doctor_finds_nothing_wrong_on_a_read_only_root(images: dict[str, str], target: str) -> None:
    report = json.loads(
        in_image(
            images[target], "adjudge", "doctor", "--json",
            ADJUDGE_ENGINE_URL="scripted://yes", ADJUDGE_HOST="127.0.0.1", ADJUDGE_DATA_DIR="/tmp",
        )
    )  # fmt: skip
    assert {check["result"] for check in report} <= {"ok", "warning"}, report


@pytest.mark.parametrize(("target", "port"), [(target, SERVERS[target]) for target in STARTED_BY])
def test_its_own_health_check_passes_when_it_serves(images: dict[str, str], target: str, port: int) -> None:
    check = inspect(images[target], "image")["Healthcheck"]["Test"]
    assert check[-1] == f"http://127.0.0.1:{port}/healthz"
    with running(images[target], *STARTED_BY[target], ADJUDGE_DATA_DIR="/tmp", **SETTINGS[target]) as name:
        wait_until_healthy(name)


def test_the_client_computes_rewards_in_its_image(images: dict[str, str]) -> None:
    code = "from trainer_client.advantages import group_advantages; print(group_advantages([1.0, 0.0]))"
    assert "nan" not in in_image(images["client"], "python", "-c", code)


def test_each_image_says_what_it_is(images: dict[str, str]) -> None:
    for target, name in images.items():
        labels = inspect(name, "image")["Labels"]
        assert labels["org.opencontainers.image.title"] == f"adjudge-{target}"
        assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
