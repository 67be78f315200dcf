"""The chart as Helm renders it for each value set, and helpers that read its objects."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import yaml

from tests.deploy.tools import HELM, ROOT, run

FOLDER = ROOT / "helm/adjudge"
VALUE_SETS = ["cpu-dev", "gpu-single", "gpu-pool", "production"]
TRIAL = "trial"
"""The name here of the chart without values."""
ALL_SETS = [TRIAL, *VALUE_SETS]
NAMESPACE = "judging"
WORKLOADS = {"Deployment", "StatefulSet", "Job", "Pod"}

Manifest = dict[str, Any]


def template(*arguments: str) -> "Any":
    """Run `helm template`, whether or not it succeeds."""
    return run(HELM, "template", "adjudge", FOLDER, "--namespace", NAMESPACE, *arguments)


def file_of(values: str) -> tuple[str, ...]:
    """Return the arguments that name a value set's file; a trial has none."""
    return () if values == TRIAL else ("--values", str(FOLDER / f"ci/{values}-values.yaml"))


@cache
def text(values: str, *more: str) -> str:
    """Render the chart with one value set, as YAML; `more` are further arguments."""
    rendered = template(*file_of(values), *more)
    assert rendered.returncode == 0, rendered.stderr
    given: str = rendered.stdout
    return given


@cache
def objects(values: str, *more: str) -> list[Manifest]:
    """Return the objects of one value set."""
    return [found for found in yaml.safe_load_all(text(values, *more)) if found]


def of_kind(values: str, *kinds: str) -> list[Manifest]:
    """Return the objects of these kinds."""
    return [found for found in objects(values) if found["kind"] in kinds]


def pods(values: str, *more: str) -> Iterator[tuple[str, Manifest, Manifest]]:
    """Yield name, labels and spec of each pod or pod template."""
    for found in (found for found in objects(values, *more) if found["kind"] in WORKLOADS):
        pod = found if found["kind"] == "Pod" else found["spec"]["template"]
        yield f"{found['kind']}/{found['metadata']['name']}", pod["metadata"]["labels"], pod["spec"]


def containers(values: str) -> Iterator[tuple[str, Manifest]]:
    """Yield each container, init containers included, with a name to identify it."""
    for name, _, spec in pods(values):
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            yield f"{name}/{container['name']}", container


def environment(container: Manifest) -> dict[str, Any]:
    """Return a container's variables: values, or references to them."""
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container.get("env", [])}


def component(labels: Manifest) -> str:
    """Return the component that the labels name."""
    name: str = labels["app.kubernetes.io/component"]
    return name


def fits(selector: Manifest, labels: Manifest) -> bool:
    """Whether the labels match the selector."""
    return all(labels.get(key) == value for key, value in selector.items())
