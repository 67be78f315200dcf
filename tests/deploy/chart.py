"""The chart as Helm renders it, for each of its value sets, and the parts of objects that rules are about."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import yaml

from tests.deploy.tools import HELM, ROOT, run

FOLDER = ROOT / "helm/adjudge"
VALUE_SETS = ["cpu-dev", "gpu-single", "gpu-pool", "production"]
NAMESPACE = "judging"
WORKLOADS = {"Deployment", "StatefulSet", "Job", "Pod"}

Manifest = dict[str, Any]


def template(*arguments: str) -> "Any":
    """`helm template`, whatever comes of it."""
    return run(HELM, "template", "adjudge", FOLDER, "--namespace", NAMESPACE, *arguments)


@cache
def text(values: str, *more: str) -> str:
    """The chart with one value set, as YAML; `more` are further arguments."""
    rendered = template("--values", str(FOLDER / f"ci/{values}-values.yaml"), *more)
    assert rendered.returncode == 0, rendered.stderr
    given: str = rendered.stdout
    return given


@cache
def objects(values: str, *more: str) -> list[Manifest]:
    """The objects of one value set."""
    return [found for found in yaml.safe_load_all(text(values, *more)) if found]


def of_kind(values: str, *kinds: str) -> list[Manifest]:
    """The objects of these kinds."""
    return [found for found in objects(values) if found["kind"] in kinds]


def pods(values: str, *more: str) -> Iterator[tuple[str, Manifest, Manifest]]:
    """Name, labels and spec of each pod, or of the template it is made from."""
    for found in (found for found in objects(values, *more) if found["kind"] in WORKLOADS):
        pod = found if found["kind"] == "Pod" else found["spec"]["template"]
        yield f"{found['kind']}/{found['metadata']['name']}", pod["metadata"]["labels"], pod["spec"]


def containers(values: str) -> Iterator[tuple[str, Manifest]]:
    """Each container with a name to find it by, those that run first too."""
    for name, _, spec in pods(values):
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            yield f"{name}/{container['name']}", container


def environment(container: Manifest) -> dict[str, Any]:
    """A container's variables: texts, or what they are taken from."""
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container.get("env", [])}


def component(labels: Manifest) -> str:
    """Which part of the service it is."""
    name: str = labels["app.kubernetes.io/component"]
    return name


def fits(selector: Manifest, labels: Manifest) -> bool:
    """Whether labels have all that a selector asks for."""
    return all(labels.get(key) == value for key, value in selector.items())
