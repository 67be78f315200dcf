"""`helm install` without values: its Secret, its stores and its judge, and where it is refused."""

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from tests.deploy.chart import FOLDER, NAMESPACE, TRIAL, Manifest, containers, environment, objects
from tests.deploy.tools import HELM, HELM_3, ROOT, needs_tools, run

pytestmark = needs_tools

SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/adjudge-trial"


def discovery() -> dict[str, Manifest]:
    """What Helm asks a Kubernetes API for before it looks an object up: here, the kinds that a trial has."""
    kinds: dict[str, set[str]] = {}
    for one in objects(TRIAL):
        kinds.setdefault(one["apiVersion"], set()).add(one["kind"])
    groups = [version.split("/") for version in kinds if "/" in version]
    versions = [[{"groupVersion": f"{group}/{version}", "version": version}] for group, version in groups]
    return {
        "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [
                {"name": group, "versions": served, "preferredVersion": served[0]}
                for (group, _), served in zip(groups, versions, strict=True)
            ],
        },
    } | {
        f"/api{'s' if '/' in version else ''}/{version}": {
            "kind": "APIResourceList",
            "groupVersion": version,
            "resources": [
                {"name": plural(kind), "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get"]}
                for kind in served
            ],
        }
        for version, served in kinds.items()
    }


def plural(kind: str) -> str:
    return re.sub("ys$", "ies", f"{kind.lower()}s")


@contextmanager
def kubernetes(**secret: str) -> Iterator[str]:
    """Serve the part of Kubernetes' API that Helm's `lookup` uses; yield its URL. Without keys, there is no Secret."""
    data = {key: base64.b64encode(value.encode()).decode() for key, value in secret.items()}
    found = {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "adjudge-trial"}, "data": data}
    known = discovery() | ({SECRET: found} if secret else {})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            self.send_response(200 if path in known else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            self.wfile.write(json.dumps(known.get(path, missing)).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def upgrade(helm: Path, url: str) -> tuple[int, str, str]:
    server = ("--dry-run=server", "--disable-openapi-validation", "--kube-apiserver", url)
    return template(helm, "--is-upgrade", *server)


def template(helm: Path, *arguments: str) -> tuple[int, str, str]:
    done = run(helm, "template", "adjudge", FOLDER, "--namespace", NAMESPACE, *arguments)
    return done.returncode, done.stdout, done.stderr


def secret_in(rendered: str) -> dict[str, str]:
    """The decoded keys of the only Secret."""
    (data,) = [found["data"] for found in yaml.safe_load_all(rendered) if found and found["kind"] == "Secret"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def test_each_installation_generates_other_secrets() -> None:
    first, second = (secret_in(template(HELM)[1]) for _ in range(2))
    assert first.keys() == second.keys()
    assert not set(first.values()) & set(second.values())
    assert re.fullmatch(r"adj_[a-z2-7]{16}_[A-Za-z0-9_-]{43}", first.pop("bootstrap-key"))
    assert all(re.fullmatch(r"[A-Za-z0-9]{32,64}", value) for value in first.values())


@pytest.mark.parametrize("helm", [HELM_3, HELM], ids=["3.17", "4"])
def test_an_upgrade_keeps_the_secret_and_adds_only_keys_that_it_lacks(helm: Path) -> None:
    made = secret_in(template(helm)[1])
    lacking = made.pop("signing-secret")
    with kubernetes(**made) as url:
        status, rendered, error = upgrade(helm, url)
    assert status == 0, error
    upgraded = secret_in(rendered)
    assert upgraded.pop("signing-secret") != lacking
    assert upgraded == made


@pytest.mark.parametrize("helm", [HELM_3, HELM], ids=["3.17", "4"])
def test_an_upgrade_that_forgets_its_values_is_refused_and_does_not_become_a_trial(helm: Path) -> None:
    with kubernetes() as url:
        status, _, error = upgrade(helm, url)
    assert status != 0
    assert "the trial's Secret adjudge-trial was not found in judging" in error
    assert template(helm, "--is-upgrade")[0] != 0, "without a cluster, nothing tells a trial"


def test_pods_and_stores_share_passwords_under_keys_that_the_secret_has() -> None:
    found = dict(containers(TRIAL))
    api = environment(found["Deployment/adjudge-api/api"])
    postgres = environment(found["StatefulSet/adjudge-postgres/postgres"])
    redis = environment(found["StatefulSet/adjudge-redis/redis"])
    assert api["ADJUDGE_DATABASE_PASSWORD"] == postgres["POSTGRES_PASSWORD"]
    assert api["ADJUDGE_CACHE_PASSWORD"] == api["ADJUDGE_QUEUE_PASSWORD"] == redis["VALKEY_PASSWORD"]
    references = [
        value["secretKeyRef"]
        for container in found.values()
        for value in environment(container).values()
        if isinstance(value, dict) and not value["secretKeyRef"].get("optional")
    ]
    (secret,) = [one for one in objects(TRIAL) if one["kind"] == "Secret"]
    assert {reference["name"] for reference in references} == {secret["metadata"]["name"]}
    assert {reference["key"] for reference in references} <= secret["data"].keys()
    services = {one["metadata"]["name"] for one in objects(TRIAL) if one["kind"] == "Service"}
    assert {re.split("[@/:]+", api[f"ADJUDGE_{store}_URL"])[-3] for store in ("DATABASE", "CACHE", "QUEUE")} <= services


def test_a_trial_fits_on_a_laptop_and_still_takes_the_values_that_are_set() -> None:
    replicas = {one["metadata"]["name"]: one["spec"].get("replicas") for one in objects(TRIAL) if "spec" in one}
    assert replicas["adjudge-judge"] == 1
    requested = [one["resources"]["requests"]["cpu"] for _, one in containers(TRIAL)]
    assert sum(int(cpu[:-1]) if cpu.endswith("m") else 1000 * int(cpu) for cpu in requested) < 2500
    chosen = ("--set", "api.replicas=3,worker.replicas=2,judge.kind=gpu,judge.gpus=2,cache.urlKey=ignored")
    found = {(one["kind"], one["metadata"]["name"]): one for one in objects(TRIAL, *chosen)}
    assert found["Deployment", "adjudge-api"]["spec"]["replicas"] == 3
    assert found["Deployment", "adjudge-worker"]["spec"]["replicas"] == 2
    judge = found["StatefulSet", "adjudge-judge"]["spec"]["template"]["spec"]["containers"][0]
    assert environment(judge)["ADJUDGE_ENGINE_URL"] == "vllm://Qwen/Qwen2.5-7B-Instruct"
    assert judge["resources"]["requests"] == {"cpu": "4", "memory": "16Gi", "ephemeral-storage": "2Gi"} | {
        "nvidia.com/gpu": 2
    }


def test_with_a_secret_and_nothing_else_it_is_no_trial() -> None:
    given = [one for one in yaml.safe_load_all(template(HELM, "--set", "existingSecret=adjudge")[1]) if one]
    named = {(one["kind"], one["metadata"]["name"]): one["spec"] for one in given if "spec" in one}
    assert named["Deployment", "adjudge-api"]["replicas"] == named["Deployment", "adjudge-worker"]["replicas"] == 2
    judge = named["StatefulSet", "adjudge-judge"]["template"]["spec"]["containers"][0]
    assert environment(judge)["ADJUDGE_ENGINE_URL"] == "vllm://Qwen/Qwen2.5-7B-Instruct"
    assert not [one for one in given if one["kind"] == "Secret" or one["metadata"]["name"].endswith("-postgres")]


def test_the_notes_of_a_trial_lead_to_the_first_reward_and_say_what_it_is_not_for() -> None:
    installed = run(HELM, "install", "adjudge", FOLDER, "--namespace", NAMESPACE, "--dry-run=client")
    assert installed.returncode == 0, installed.stderr
    notes = installed.stdout.partition("NOTES:")[2]
    assert "not for production" in notes
    assert (ROOT / re.findall(r"-d @(\S+)", notes)[0]).exists()
    assert set(re.findall(r"get secret (\S+) .*index \.data \"([a-z-]+)\"", notes)) == {
        ("adjudge-trial", "bootstrap-key")
    }


def test_images_are_built_under_the_names_that_the_chart_looks_for(tmp_path: Path) -> None:
    builder = tmp_path / "docker"
    builder.write_text('#!/bin/sh\necho "$@"\n')
    builder.chmod(0o755)
    images = ["api", "worker", "client", "judge-cpu"]
    path = f"{tmp_path}:/usr/bin:/bin"
    for registry, arguments in (("", ()), ("r.example.org/a", ("--set", "images.registry=r.example.org/a"))):
        built = run(ROOT / "docker/build.sh", *images, env={"PATH": path, "BUILDER": "docker", "REGISTRY": registry})
        assert built.returncode == 0, built.stderr
        wanted = {
            found
            for one in objects(TRIAL, *arguments)
            for found in re.findall(r"image: (\S+/adjudge-\S+)", yaml.safe_dump(one))
        }
        assert len(wanted) == len(images)
        assert wanted <= set(re.findall(r"--tag (\S+)", built.stdout))
