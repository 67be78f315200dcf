"""The compose file, started on an empty host by the documented commands, and the operations that a team needs later.

The commands are taken from `docs/how-to/` and run unchanged, with a `docker` that passes compose files to
podman-compose. All requests go through published ports. A model that this machine already has is not downloaded again.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from judge_server.models.files import models_dir
from tests.deploy.containers.base_images import POSTGRES_IMAGE, PYTHON_IMAGE, VALKEY_IMAGE, make_base_images
from tests.deploy.containers.podman import COMPOSE, environment, inspect, needs_containers, podman, run
from tests.deploy.tools import ROOT
from tests.docs.pages import blocks
from tests.fixtures.ports import unused_port
from trainer_client import Client
from trainer_client.errors import AdjudgeError

pytestmark = [needs_containers, pytest.mark.containers, pytest.mark.slow]

HOW_TO = ROOT / "docs/how-to"
DEPLOY, BACKUP = HOW_TO / "deploy-with-docker-compose.md", HOW_TO / "back-up-and-restore.md"
MODEL = "qwen2.5-coder-0.5b"
PROJECT = "adjudge-test-stack"
MOST_COMMANDS = 5
RUBRIC = {"criteria": [{"id": "speed", "description": "The response says 80 km/h."}]}
GROUP = {"id": "train", "prompt": "120 km in 1.5 h: what speed?", "responses": ["120 / 1.5 = 80 km/h."]}
WITHIN_S = 600.0

_DOCKER = f"""\
#!/bin/sh
[ "$1" = compose ] || exit 1
shift
exec {COMPOSE} "$@"
"""
_PODMAN = f"""\
#!/bin/bash
# podman 4.3 starts no container that requires one that has ended, as those that wait for migrate do.
words=()
for word in "$@"; do [[ $word == --requires=* ]] || words+=("$word"); done
exec {shutil.which("podman")} "${{words[@]}}"
"""


def commands(page: Path, containing: str) -> str:
    """Return the block of commands of a page that contains a text, as one script."""
    (block,) = [block for block in blocks(page, "bash") if containing in block]
    return block


@dataclass
class Stack:
    """A clone on a host, the variables of its shell, and the address of its api."""

    clone: Path
    variables: dict[str, str]
    url: str
    key: str = ""

    def shell(self, script: str, timeout_s: float = 3000) -> str:
        """Run documented commands unchanged except for the port; return their output."""
        here = script.replace("http://127.0.0.1:8000", self.url)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", here],
            cwd=self.clone, env=self.variables, capture_output=True, text=True, check=False, timeout=timeout_s,
        )  # fmt: skip
        assert done.returncode == 0, f"{script}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}\n{self.logs()}"
        return done.stdout

    def compose(self, *words: str) -> str:
        """Run compose with the documented file."""
        return self.shell(shlex.join(["docker", "compose", "--file", "docker/compose.yaml", *words]))

    def container(self, service: str) -> str:
        """Return the name of a service's container."""
        return f"{PROJECT}_{service}_1"

    def logs(self) -> str:
        """Return the last lines of every container's log."""
        names = podman("ps", "--all", "--filter", f"name={PROJECT}", "--format", "{{.Names}} {{.Status}}").splitlines()
        tails = ((name, run("podman", "logs", "--tail=15", name.split()[0], check=False)) for name in names)
        return "\n".join(f"== {name}\n{said.stdout}{said.stderr}" for name, said in tails)

    def client(self, key: str | None = None, **options: Any) -> Client:
        """Return a client whose timeout covers a restart."""
        return Client(self.url, api_key=key or self.key, timeout_s=300, retries=60, retry_budget_s=WITHIN_S, **options)

    def wait_until_ready(self) -> None:
        """Wait until the api has found its judge and the judge has loaded its model."""
        pause = threading.Event()
        with self.client() as client:
            for _ in range(int(WITHIN_S)):
                if client.ready():
                    return
                pause.wait(1)
        raise AssertionError(self.logs())


def clone_to(folder: Path) -> None:
    """Copy the files that are in the repository, or would be with the next commit."""
    listed = subprocess.check_output(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)  # keeps its mtime, for build caches


def put_model_into_volume() -> None:
    """Avoid a download: put the model's file where the service `model` would, if this machine has it."""
    files = [path for path in models_dir().glob(f"{MODEL}*.gguf") if path.is_file()]
    podman("volume", "create", f"{PROJECT}_models")
    target = Path(podman("volume", "inspect", "--format", "{{.Mountpoint}}", f"{PROJECT}_models").strip())
    os.chown(target, 10001, 10001)
    for file in files:
        folder = target / "adjudge/models"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder)
        for path in (folder.parent, folder, folder / file.name):
            os.chown(path, 10001, 10001)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """An empty host with a clone; removed at the end, with its volumes."""
    make_base_images()
    folder = tmp_path_factory.mktemp("host")
    clone_to(folder / "clone")
    programs = folder / "bin"
    programs.mkdir()
    for name, script in {"docker": _DOCKER, "podman": _PODMAN}.items():
        (programs / name).write_text(script, encoding="utf-8")
        (programs / name).chmod(0o755)
    port = unused_port()
    variables = {
        **environment(),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "COMPOSE_PROJECT_NAME": PROJECT,
        "PYTHON_IMAGE": PYTHON_IMAGE,
        "POSTGRES_IMAGE": POSTGRES_IMAGE,
        "VALKEY_IMAGE": VALKEY_IMAGE,
        "ADJUDGE_PORT": str(port),
        "POSTGRES_PORT": str(unused_port()),
        "VALKEY_PORT": str(unused_port()),
        "ADJUDGE_CPU_MODEL": MODEL,
    }
    started = Stack(folder / "clone", variables, f"http://127.0.0.1:{port}")
    remove_everything()
    put_model_into_volume()
    try:
        yield started
    finally:
        remove_everything()


def remove_everything() -> None:
    """Remove this project's containers, pods, volumes and networks, whatever state they are in."""
    names = podman("ps", "--all", "--quiet", "--filter", f"name={PROJECT}").split()
    if names:
        podman("rm", "--force", "--time=5", *names, check=False)
    for kind in ("pod", "volume", "network"):
        listed = podman(kind, "ls", "--format", "{{.Name}}").split()
        for name in (name for name in listed if PROJECT in name):
            podman(kind, "rm", "--force", name, check=False)


@pytest.fixture(scope="module")
def first_answer(stack: Stack) -> dict[str, Any]:
    """The answer that curl prints at the end of the documented commands."""
    printed = stack.shell(commands(DEPLOY, "docker/make-env.sh"))
    stack.key = re.findall(r"^ADJUDGE_BOOTSTRAP_KEY=(.+)$", (stack.clone / "docker/.env").read_text(), re.MULTILINE)[0]
    answer: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return answer


@pytest.fixture
def running(stack: Stack, first_answer: dict[str, Any]) -> Stack:
    """The stack, ready to serve."""
    assert first_answer
    stack.wait_until_ready()
    return stack


def test_few_documented_commands_go_from_an_empty_host_to_a_judged_reward(first_answer: dict[str, Any]) -> None:
    script = commands(DEPLOY, "docker/make-env.sh").replace("\\\n", "")
    assert len(script.splitlines()) <= MOST_COMMANDS
    responses = first_answer["groups"][0]["responses"]
    assert [response["status"] for response in responses] == ["scored", "scored"]
    assert all(verdict["status"] == "ok" for response in responses for verdict in response["verdicts"])
    assert first_answer["judge"]["model"].startswith(MODEL)


def test_every_container_passes_the_health_check_of_the_compose_file(running: Stack) -> None:
    for service in ("postgres", "valkey", "api", "worker", "judge-cpu"):
        checked = run("podman", "healthcheck", "run", running.container(service), check=False)
        assert checked.returncode == 0, f"{service}: {checked.stdout} {checked.stderr}"


def test_every_container_has_a_read_only_root_and_no_capability(running: Stack) -> None:
    for service in ("postgres", "valkey", "api", "worker", "judge-cpu"):
        found = inspect(running.container(service))
        assert found["HostConfig"]["ReadonlyRootfs"], service
        assert not found["EffectiveCaps"], service


def test_a_key_with_one_scope_is_made_as_documented_and_permits_nothing_else(running: Stack) -> None:
    (script,) = [
        line
        for line in commands(DEPLOY, "run --rm migrate keys create --scope score").splitlines()
        if "keys create" in line
    ]
    (key,) = re.findall(r"adj_\w{16}_[\w-]{43}", running.shell(script))
    with running.client(key, run="keyed") as client:
        (group,) = client.rewards([GROUP], RUBRIC, "weighted_mean").groups
        assert group.responses[0].reward is not None
        with pytest.raises(AdjudgeError, match="scope"):
            client.publish_rubric("not/allowed", RUBRIC["criteria"])
    refused = httpx2.post(f"{running.url}/v1/rewards", json={}, headers={"Authorization": f"Bearer {key[:-3]}xyz"})
    assert refused.status_code == 401


def test_the_worker_completes_an_operation(running: Stack) -> None:
    with running.client() as client:
        request = {"kind": "score", "groups": [GROUP], "rubric": RUBRIC, "reward": {"mode": "weighted_mean"}}
        *_, ended = client.follow(client.submit(request).id)
        assert (ended.state, ended.progress.done) == ("done", 1)
        (result,) = client.operation_results(ended.id)
        assert "scored" in json.dumps(result)


def test_a_killed_judge_is_restarted_and_no_request_fails(running: Stack) -> None:
    name = running.container("judge-cpu")
    before = inspect(name)
    os.kill(before["State"]["Pid"], signal.SIGKILL)
    with running.client(run="killed") as client:
        group = {**GROUP, "prompt": "Asked while the judge was away."}
        (answered,) = client.rewards([group], RUBRIC, "weighted_mean").groups
    assert answered.responses[0].reward is not None
    after = inspect(name)
    assert after["Id"] == before["Id"]
    assert after["State"]["Pid"] not in (0, before["State"]["Pid"])


def test_processes_are_restarted_one_by_one_without_a_failed_request(running: Stack) -> None:
    ended = threading.Event()
    rewards: list[float | None] = []
    errors: list[AdjudgeError] = []

    def ask() -> None:
        with running.client(run="rolling") as client:
            while not ended.is_set() or not rewards:
                group = {**GROUP, "prompt": f"Question {len(rewards)}: 120 km in 1.5 h?"}
                try:
                    rewards.append(client.rewards([group], RUBRIC, "weighted_mean").groups[0].responses[0].reward)
                except AdjudgeError as error:
                    errors.append(error)
                    return

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for service in ("api", "judge-cpu", "worker"):
            running.compose("restart", service)
            running.wait_until_ready()
    finally:
        ended.set()
        asking.join()
    assert errors == []
    assert None not in rewards


def test_a_lost_database_is_restored_as_documented(running: Stack) -> None:
    backup, restore = (commands(BACKUP, text) for text in ("exec -T postgres pg_dump", "exec -T postgres pg_restore"))
    with running.client() as client:
        kept = client.publish_rubric("kept/rubric", RUBRIC["criteria"])
        running.shell(backup)
        client.publish_rubric("lost/rubric", RUBRIC["criteria"])
    running.compose("down")
    podman("volume", "rm", f"{PROJECT}_database")
    running.shell(restore)
    running.wait_until_ready()
    with running.client() as client:
        assert client.rubric("kept/rubric").digest == kept.digest
        with pytest.raises(AdjudgeError):
            client.rubric("lost/rubric")
