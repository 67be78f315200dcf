"""The chart's pods, run for real by `podman kube play`, with a test in the place of Kubernetes' controllers.

Podman runs Pods with their containers, volumes, secrets and security contexts. What it lacks is done here: a Job or a
StatefulSet becomes its pods, a claim becomes a volume of the pod's group, a Service becomes a name in the pods'
network, and the probes of a manifest are asked by its own commands, paths and ports.
"""

import base64
import json
import os
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx2
import yaml

from tests.deploy.chart import FOLDER, NAMESPACE, Manifest
from tests.deploy.tools import HELM, run

POSTGRES_IMAGE = "localhost/adjudge-test-postgres:17.0.0"
VALKEY_IMAGE = "localhost/adjudge-test-valkey:8.0.0"
REGISTRY = os.environ.get("ADJUDGE_TEST_REGISTRY", "localhost")
VERSION = str(yaml.safe_load((FOLDER / "Chart.yaml").read_text())["appVersion"])
IMAGES = [f"{REGISTRY}/adjudge-{name}:{VERSION}" for name in ("api", "worker", "judge-cpu")]

_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
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


def run_podman(folder: Path, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run podman."""
    configuration = folder / "containers.conf"
    if not configuration.exists():
        configuration.write_text(_CONFIGURATION, encoding="utf-8")
    return subprocess.run(
        ["podman", *map(str, arguments)],
        env={**os.environ, "CONTAINERS_CONF": str(configuration)},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def podman(folder: Path, *arguments: str | Path, check: bool = True) -> str:
    """What a command of podman prints."""
    done = run_podman(folder, *arguments)
    assert done.returncode == 0 or not check, f"podman {arguments}: {done.stderr or done.stdout}"
    return done.stdout.strip()


def missing(folder: Path) -> str:
    """What these tests lack here; empty if nothing."""
    if not HELM.exists():
        return "helm, which make deploy-tools fetches"
    if os.geteuid() != 0 or any(shutil.which(program) is None for program in ("podman", "runc", "catatonit")):
        return "podman, runc and catatonit, and root"
    there = podman(folder, "images", "--format", "{{.Repository}}:{{.Tag}}", check=False).split()
    return ", ".join(sorted({*IMAGES, POSTGRES_IMAGE, VALKEY_IMAGE} - set(there)))


class Cluster:
    """A release of the chart in a network of its own. `close` removes all of it."""

    def __init__(self, folder: Path, values: str, *more: str) -> None:
        self.folder = folder
        self.name = f"adjudge-pods-{secrets.token_hex(3)}"
        self.running: set[str] = set()
        self.secrets: set[str] = set()
        rendered = run(
            HELM, "template", "adjudge", FOLDER, "--namespace", NAMESPACE, "--values",
            FOLDER / f"ci/{values}-values.yaml", *more,
        )  # fmt: skip
        assert rendered.returncode == 0, rendered.stderr
        self.objects: list[Manifest] = [found for found in yaml.safe_load_all(rendered.stdout) if found]
        podman(folder, "network", "create", self.name)

    def add_secret(self, name: str, values: dict[str, str]) -> None:
        """Create a Secret."""
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        self._add_secret(name, data)

    def create_secrets_of_the_chart(self) -> dict[str, str]:
        """Create the Secrets that the chart renders, and return the data of the last one."""
        data: dict[str, str] = {}
        for found in (found for found in self.objects if found["kind"] == "Secret"):
            data = found["data"]
            self._add_secret(found["metadata"]["name"], data)
        return data

    def start(self, kind: str, name: str, pod: str, *aliases: str) -> str:
        """Start one pod of a workload under a name of its own; return its address in the network."""
        (found,) = [o for o in self.objects if o["kind"] == kind and o["metadata"]["name"] == name]
        spec = json.loads(json.dumps(found["spec"]["template"]["spec"]))
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            for key in (*_PROBES, "lifecycle", "ports"):  # podman would take the ports on this host
                container.pop(key, None)
            if container["image"] == VALKEY_IMAGE:  # made here, without a PATH of its own
                container["env"].append({"name": "PATH", "value": "/usr/local/bin:/usr/bin:/bin"})
        spec.setdefault("restartPolicy", "OnFailure")  # podman 4.3 runs init containers that succeed again otherwise
        claims = [claim["metadata"]["name"] for claim in found["spec"].get("volumeClaimTemplates", [])]
        for claim in claims:
            place = self.make_volume(f"{name}-{claim}", spec["securityContext"]["fsGroup"])
            spec.setdefault("volumes", []).append({"name": claim, "hostPath": {"path": str(place)}})
        for volume in spec.get("volumes", []):
            if volume.pop("emptyDir", None) is not None:  # podman 4.3 has none
                place = self.make_volume(f"{pod}-{volume['name']}", spec["securityContext"]["fsGroup"])
                volume["hostPath"] = {"path": str(place)}
        full = f"{self.name}-{pod}"
        metadata = {"name": full, "labels": found["spec"]["template"]["metadata"]["labels"]}
        self.running.add(full)
        options = ",".join(f"alias={alias}" for alias in (pod, *aliases))
        self._play(pod, {"kind": "Pod", "metadata": metadata, "spec": spec}, f"--network={self.name}:{options}")
        return self.address(pod)

    def make_volume(self, name: str, group: int) -> Path:
        """A folder that stands in for a volume, and that the pods' group may write, as fsGroup makes it."""
        place = self.folder / self.name / name
        place.mkdir(parents=True, exist_ok=True)
        os.chown(place, group, group)
        return place

    def address(self, pod: str) -> str:
        """The address of a pod."""
        infra = podman(self.folder, "pod", "inspect", "--format", "{{.InfraContainerID}}", f"{self.name}-{pod}")
        form = f'{{{{(index .NetworkSettings.Networks "{self.name}").IPAddress}}}}'
        return podman(self.folder, "inspect", "--format", form, infra)

    def wait_until_ready(self, pod: str, kind: str, name: str, within_s: float = 240.0) -> None:
        """Wait until all three probes of a pod pass, as its manifest has them."""
        (found,) = [o for o in self.objects if o["kind"] == kind and o["metadata"]["name"] == name]
        container = found["spec"]["template"]["spec"]["containers"][0]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        until = time.monotonic() + within_s
        for probe in _PROBES:
            while not self._passes(pod, container["name"], container[probe], ports):
                assert time.monotonic() < until, f"{pod} does not pass its {probe}\n{self.logs(pod)}"
                time.sleep(0.5)

    def _passes(self, pod: str, container: str, probe: Manifest, ports: dict[str, int]) -> bool:
        """Whether one probe passes: a command in the container, a connection, or an answer with status 200."""
        if "exec" in probe:
            in_container = ("exec", f"{self.name}-{pod}-{container}", *probe["exec"]["command"])
            return run_podman(self.folder, *in_container).returncode == 0
        if "tcpSocket" in probe:
            try:
                socket.create_connection((self.address(pod), ports[probe["tcpSocket"]["port"]]), timeout=3).close()
            except OSError:
                return False
            return True
        get = probe["httpGet"]
        try:
            return httpx2.get(f"http://{self.address(pod)}:{ports[get['port']]}{get['path']}", timeout=5).is_success
        except httpx2.HTTPError:
            return False

    def wait_until_ended(self, pod: str, within_s: float = 120.0) -> None:
        """Wait until a pod's container has ended well."""
        container = f"{self.name}-{pod}-migrate"
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            state, code = podman(
                self.folder, "inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", container
            ).split()
            if state == "exited":
                assert code == "0", self.logs(pod)
                return
            time.sleep(0.5)
        raise AssertionError(f"{pod} has not ended\n{self.logs(pod)}")

    def logs(self, pod: str) -> str:
        """What a pod's containers have said."""
        return podman(self.folder, "pod", "logs", f"{self.name}-{pod}", check=False)

    def stop(self, pod: str, grace_s: int = 90) -> None:
        """Stop a pod as Kubernetes does, and remove it."""
        podman(self.folder, "pod", "stop", "--time", str(grace_s), f"{self.name}-{pod}")
        podman(self.folder, "pod", "rm", "--force", f"{self.name}-{pod}")
        self.running.discard(f"{self.name}-{pod}")

    def close(self) -> None:
        """Remove pods, volumes, secrets and the network."""
        for pod in self.running:
            podman(self.folder, "pod", "rm", "--force", "--time", "1", pod, check=False)
        shutil.rmtree(self.folder / self.name, ignore_errors=True)
        for secret in self.secrets:
            podman(self.folder, "secret", "rm", secret, check=False)
        podman(self.folder, "network", "rm", "--force", self.name, check=False)

    def _add_secret(self, name: str, data: dict[str, str]) -> None:
        podman(self.folder, "secret", "rm", name, check=False)
        self.secrets.add(name)
        file = self.folder / f"{self.name}-{name}.json"
        file.write_text(json.dumps(data), encoding="utf-8")  # podman 4.3 reads this form, and writes another itself
        podman(self.folder, "secret", "create", name, file)

    def _play(self, name: str, manifest: dict[str, Any], *options: str) -> None:
        file = self.folder / f"{self.name}-{name}.yaml"
        file.write_text(yaml.safe_dump({"apiVersion": "v1", **manifest}), encoding="utf-8")
        podman(self.folder, "kube", "play", *options, file)
