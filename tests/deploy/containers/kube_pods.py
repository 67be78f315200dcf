"""The chart's pods, run by `podman kube play`, with the test in place of Kubernetes' controllers.

Podman runs Pods with their containers, volumes, secrets and security contexts. This module does the rest: a Job or a
StatefulSet becomes its pods, a claim becomes a volume of the pod's group, a Service becomes a name in the pods'
network, and a manifest's probes run with its own commands, paths and ports. NetworkPolicies are not enforced; instead,
the ports that pods listen on and connect to are read from the kernel and compared with the policies.
"""

import base64
import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx2
import yaml

from tests.deploy.chart import TRIAL, Manifest, file_of, fits, template
from tests.deploy.containers.base_images import POSTGRES_IMAGE, VALKEY_IMAGE
from tests.deploy.containers.podman import podman, run

_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
_ESTABLISHED, _LISTENING = "01", "0A"  # states in the kernel's table of connections


class Cluster:
    """A release of the chart in its own network, with small stores. `close` removes all of it."""

    def __init__(self, folder: Path, values: str, **chosen: str) -> None:
        self.folder = folder
        self.name = f"adjudge-pods-{secrets.token_hex(3)}"
        self.running: set[str] = set()
        self.secrets: set[str] = set()
        self.played: dict[str, Manifest] = {}
        chosen = {
            "existingSecret": "" if values == TRIAL else self.name,
            "images.registry": "localhost",
            "images.digests": "null",
            "images.pullPolicy": "IfNotPresent",  # locally built images are in no registry
            "devStores.enabled": "true",
            "devStores.postgresImage": POSTGRES_IMAGE,
            "devStores.valkeyImage": VALKEY_IMAGE,
        } | chosen
        given = (word for key, value in chosen.items() for word in ("--set", f"{key}={value}"))
        rendered = template(*file_of(values), *given)
        assert rendered.returncode == 0, rendered.stderr
        self.objects: list[Manifest] = [found for found in yaml.safe_load_all(rendered.stdout) if found]
        podman("network", "create", self.name)

    def create_secrets(self) -> str:
        """Create the release's Secret as the page on Helm does, and the chart's own; return the bootstrap key."""
        password = secrets.token_hex(8)
        redis = f"redis://:{password}@adjudge-redis:6379"
        key = f"adj_{base64.b32encode(secrets.token_bytes(10)).decode().lower()}_{secrets.token_urlsafe(32)}"
        given = {
            "bootstrap-key": key,
            "database-url": f"postgresql://adjudge:{password}@adjudge-postgres:5432/adjudge",
            "cache-url": f"{redis}/0",
            "queue-url": f"{redis}/1",
            "signing-secret": secrets.token_hex(32),
            "judge-token": secrets.token_hex(32),
            "postgres-password": password,
            "redis-password": password,
        }
        generated = [found for found in self.objects if found["kind"] == "Secret"]
        if generated:
            del given["bootstrap-key"]
        self._add_secret(self.name, {name: base64.b64encode(value.encode()).decode() for name, value in given.items()})
        for found in generated:
            self._add_secret(found["metadata"]["name"], found["data"])
            key = base64.b64decode(found["data"]["bootstrap-key"]).decode()
        return key

    def start_stores(self) -> None:
        """Start PostgreSQL and Valkey, and wait until they are ready."""
        for store in ("adjudge-postgres", "adjudge-redis"):
            self.start("StatefulSet", store, f"{store}-0", store)
        for store in ("adjudge-postgres", "adjudge-redis"):
            self.wait_until_ready(f"{store}-0")

    def migrate(self, within_s: float = 240.0) -> None:
        """Run the migrate Job to completion."""
        (job,) = [found["metadata"]["name"] for found in self.objects if found["kind"] == "Job"]
        self.start("Job", job, "migrate")
        until = time.monotonic() + within_s
        form = "{{.State.Status}} {{.State.ExitCode}}"
        while (ended := podman("inspect", "--format", form, f"{self.name}-migrate-migrate").split())[0] != "exited":
            assert time.monotonic() < until, f"migrate has not ended\n{self.logs('migrate')}"
            time.sleep(0.5)
        assert ended[1] == "0", self.logs("migrate")

    def start(self, kind: str, name: str, pod: str, *aliases: str) -> str:
        """Start one pod of a workload under a given name; return its address in the network."""
        (found,) = [o for o in self.objects if o["kind"] == kind and o["metadata"]["name"] == name]
        spec = json.loads(json.dumps(found["spec"]["template"]["spec"]))
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            for key in (*_PROBES, "lifecycle", "ports"):  # podman would bind the ports on this host
                container.pop(key, None)
            if container["image"] == VALKEY_IMAGE:  # made locally, without a PATH
                container["env"].append({"name": "PATH", "value": "/usr/local/bin:/usr/bin:/bin"})
        spec.setdefault("restartPolicy", "OnFailure")  # otherwise podman 4.3 reruns init containers that succeeded
        claims = [claim["metadata"]["name"] for claim in found["spec"].get("volumeClaimTemplates", [])]
        for claim in claims:
            place = self.make_volume(f"{name}-{claim}", spec["securityContext"]["fsGroup"])
            spec.setdefault("volumes", []).append({"name": claim, "hostPath": {"path": str(place)}})
        for volume in spec.get("volumes", []):
            if volume.pop("emptyDir", None) is not None:  # podman 4.3 does not support it
                place = self.make_volume(f"{pod}-{volume['name']}", spec["securityContext"]["fsGroup"])
                volume["hostPath"] = {"path": str(place)}
        full = f"{self.name}-{pod}"
        metadata = {"name": full, "labels": found["spec"]["template"]["metadata"]["labels"]}
        self.running.add(full)
        self.played[pod] = found
        options = ",".join(f"alias={alias}" for alias in (pod, *aliases))
        self._play(pod, {"kind": "Pod", "metadata": metadata, "spec": spec}, f"--network={self.name}:{options}")
        return self.address(pod)

    def make_volume(self, name: str, group: int) -> Path:
        """Create a folder that stands in for a volume and that the pods' group may write, as with fsGroup."""
        place = self.folder / self.name / name
        place.mkdir(parents=True, exist_ok=True)
        os.chown(place, group, group)
        return place

    def address(self, pod: str) -> str:
        """Return the address of a pod."""
        infra = podman("pod", "inspect", "--format", "{{.InfraContainerID}}", f"{self.name}-{pod}").strip()
        form = f'{{{{(index .NetworkSettings.Networks "{self.name}").IPAddress}}}}'
        return podman("inspect", "--format", form, infra).strip()

    def wait_until_ready(self, pod: str, within_s: float = 300.0) -> None:
        """Wait until all three probes in the pod's manifest pass."""
        container = self.played[pod]["spec"]["template"]["spec"]["containers"][0]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        until = time.monotonic() + within_s
        for probe in _PROBES:
            while not self._passes(pod, container["name"], container[probe], ports):
                assert time.monotonic() < until, f"{pod} does not pass its {probe}\n{self.logs(pod)}"
                time.sleep(0.5)

    def listening(self, pod: str) -> set[int]:
        """Return the ports that a pod's processes listen on, except on loopback."""
        return {port for state, port, _, loopback in self._connections(pod) if state == _LISTENING and not loopback}

    def connected(self, pod: str) -> set[int]:
        """Return the ports of other pods that this pod is currently connected to."""
        own = self.listening(pod)
        return {
            far
            for state, near, far, loopback in self._connections(pod)
            if state == _ESTABLISHED and near not in own and not loopback
        }

    def allowed_ports(self, pod: str, direction: Literal["ingress", "egress"]) -> set[int]:
        """Return the ports that the network policies open to or from a pod, except DNS (53)."""
        labels = self.played[pod]["spec"]["template"]["metadata"]["labels"]
        policies = [found["spec"] for found in self.objects if found["kind"] == "NetworkPolicy"]
        mine = [policy for policy in policies if fits(policy["podSelector"]["matchLabels"], labels)]
        assert mine, f"no policy selects {pod}"
        return {p["port"] for policy in mine for rule in policy.get(direction, []) for p in rule["ports"]} - {53}

    def _connections(self, pod: str) -> Iterator[tuple[str, int, int, bool]]:
        """Yield state, own port, remote port and whether it is on loopback, per connection in the kernel's table."""
        container = f"{self.name}-{pod}-{self.played[pod]['spec']['template']['spec']['containers'][0]['name']}"
        table = podman("exec", container, "cat", "/proc/net/tcp", "/proc/net/tcp6")
        for line in (line.split() for line in table.splitlines() if ":" in line):
            if line[0] == "sl":
                continue
            (address, near), (_, far) = line[1].split(":"), line[2].split(":")
            loopback = address[-8:] == "0100007F" or address == "0" * 24 + "01000000"
            yield line[3], int(near, 16), int(far, 16), loopback

    def _passes(self, pod: str, container: str, probe: Manifest, ports: dict[str, int]) -> bool:
        """Whether a probe passes: a command in the container, a connection, or an HTTP request."""
        if "exec" in probe:
            in_container = ("exec", f"{self.name}-{pod}-{container}", *probe["exec"]["command"])
            return run("podman", *in_container, check=False).returncode == 0
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

    def logs(self, pod: str) -> str:
        """Return the logs of a pod's containers."""
        said = run("podman", "pod", "logs", f"{self.name}-{pod}", check=False)
        return (said.stdout + said.stderr)[-8000:]

    def stop(self, pod: str) -> None:
        """Stop a pod as Kubernetes does, with the grace period of its manifest, and remove it."""
        spec = self.played[pod]["spec"]["template"]["spec"]
        containers = [f"{self.name}-{pod}-{container['name']}" for container in spec["containers"]]
        # Stopping the pod would remove its network while its containers still answer.
        podman("stop", "--time", str(spec["terminationGracePeriodSeconds"]), *containers)
        podman("pod", "rm", "--force", f"{self.name}-{pod}")
        self.running.discard(f"{self.name}-{pod}")

    def close(self) -> None:
        """Remove pods, volumes, secrets and the network."""
        for pod in self.running:
            podman("pod", "rm", "--force", "--time", "1", pod, check=False)
        shutil.rmtree(self.folder / self.name, ignore_errors=True)
        for secret in self.secrets:
            podman("secret", "rm", secret, check=False)
        podman("network", "rm", "--force", self.name, check=False)

    def _add_secret(self, name: str, data: dict[str, str]) -> None:
        podman("secret", "rm", name, check=False)
        self.secrets.add(name)
        file = self.folder / f"{self.name}-{name}.json"
        file.write_text(json.dumps(data), encoding="utf-8")  # podman 4.3 reads this form, but writes another
        podman("secret", "create", name, file)

    def _play(self, name: str, manifest: dict[str, Any], *options: str) -> None:
        file = self.folder / f"{self.name}-{name}.yaml"
        file.write_text(yaml.safe_dump({"apiVersion": "v1", **manifest}), encoding="utf-8")
        podman("kube", "play", *options, file)
