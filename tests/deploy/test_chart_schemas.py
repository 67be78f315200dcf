"""Kubernetes and the operators accept the rendered chart, and unknown values are refused."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy.chart import ALL_SETS, FOLDER, file_of, objects, template, text
from tests.deploy.tools import CHECKOV, HELM, OPERATORS, VENV, needs_tools, run

SCHEMAS = {path.stem: json.loads(path.read_text()) for path in Path(__file__).parent.glob("schemas/*.json")}
VALUES_SCHEMA = json.loads((FOLDER / "values.schema.json").read_text(encoding="utf-8"))
SKIPPED_CHECKS = {
    "CKV_K8S_35": "settings are variables of the environment, also those that are secret",
    "CKV_K8S_8": "worker, toolbox and test listen nowhere; of others test_chart_policies.py asks for three probes",
    "CKV_K8S_9": "the same",
}
SKIPPED_WITHOUT_DIGESTS = {
    "CKV_K8S_15": "an image that is on the node already is not asked for again",
    "CKV_K8S_43": "images go by version where no digest is given",
}
REFUSED = {
    "api.replicaz=2": "replicaz",
    "nonsense=1": "nonsense",
    "judge.kind=tpu": "/judge/kind",
    "images.registry=": "images.registry must be set",
    "existingSecret=,database.existingSecret=pg-app": "since database is given",
    "existingSecret=,queue.passwordKey=password": "since queue is given",  # pragma: allowlist secret
    "existingSecret=,cache.host=kv-redis-master": "since cache is given",
    "api.replicas=0": "/api/replicas",
    "images.tag=latest": "/images/tag",
    "vllm.image=vllm/vllm-openai:latest": "/vllm/image",
    "api.autoscaling.kind=both": "/api/autoscaling/kind",
    "worker.autoscaling.hpa.enabled=true": "hpa",
    "settings.ADJUDGE_SIGNING_SECRET=abc": "ADJUDGE_SIGNING_SECRET",
    "settings.ADJUDGE_DATABASE_URL=abc": "ADJUDGE_DATABASE_URL",
    "api.resources.limits.memory=": "/api/resources/limits/memory",
    "monitoring.enabled=maybe": "/monitoring/enabled",
    "migrate.deadlineSeconds=soon": "/migrate/deadlineSeconds",
    "networkPolicy.caches[0].podSelector.matchLabels.app=redis": "/networkPolicy/caches/0",
    "networkPolicy.writers[0].port=443": "/networkPolicy/writers/0",
}


def inner_objects(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield every schema of an object with named properties within a schema."""
    if isinstance(schema, dict):
        if "properties" in schema and isinstance(schema["properties"], dict) and "type" in schema:
            yield schema
        for part in schema.values():
            yield from inner_objects(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from inner_objects(part)


def of_operators(values: str) -> list[dict[str, Any]]:
    """Return the rendered objects that Prometheus' operator or KEDA reads."""
    return [found for found in objects(values) if found["kind"] in SCHEMAS]


def refused_by_operators(found: list[dict[str, Any]]) -> list[str | None]:
    """For each object, return what its operator's definition rejects, or None."""
    validated = run(VENV / "bin/node", OPERATORS / "validate.js", stdin=json.dumps(found))
    assert validated.returncode == 0, validated.stderr
    return [json.loads(line) for line in validated.stdout.splitlines()]


@needs_tools
@pytest.mark.parametrize("values", ALL_SETS)
def test_helm_lints_the_chart(values: str) -> None:
    linted = run(HELM, "lint", FOLDER, "--strict", *file_of(values))
    assert linted.returncode == 0, linted.stdout + linted.stderr


@needs_tools
def test_kubernetes_accepts_every_object_of_its_own(tmp_path: Path) -> None:
    files = []
    for values in ALL_SETS:
        own = [found for found in objects(values) if found["kind"] not in SCHEMAS]
        files.append(tmp_path / f"{values}.yaml")
        files[-1].write_text(yaml.safe_dump_all(own), encoding="utf-8")
    validated = run(VENV / "bin/kubernetes-validate", "--strict", *files)
    assert validated.returncode == 0, validated.stdout
    assert "Couldn't find schema" not in validated.stdout
    assert "ERROR" not in validated.stdout


@needs_tools
def test_kubernetes_accepts_the_queued_trainer_of_the_examples() -> None:
    validated = run(VENV / "bin/kubernetes-validate", "--strict", "examples/cluster/kueue.yaml")
    assert validated.returncode == 0, validated.stdout
    assert "passed" in validated.stdout + validated.stderr


@needs_tools
@pytest.mark.parametrize("values", ["gpu-pool", "production"])
def test_the_operators_accept_every_object_of_theirs(values: str) -> None:
    theirs = of_operators(values)
    assert {found["kind"] for found in theirs} == SCHEMAS.keys()
    assert refused_by_operators(theirs) == [None] * len(theirs)


@needs_tools
@pytest.mark.parametrize("values", ["gpu-pool", "production"])
def test_no_operator_object_has_a_field_that_would_be_dropped_silently(values: str) -> None:
    for found in of_operators(values):
        jsonschema.validate(found, SCHEMAS[found["kind"]])


@needs_tools
@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("ServiceMonitor", ["spec", "endpoints", 0, "interval"], 15),
        ("ServiceMonitor", ["spec", "selector"], None),
        ("PrometheusRule", ["spec", "groups", 0, "rules", 0, "for"], "soon"),
        ("PrometheusRule", ["spec", "groups", 0, "name"], ""),
        ("ScaledObject", ["spec", "scaleTargetRef"], {}),
        ("ScaledObject", ["spec", "triggers", 0, "metadata"], {"threshold": 5}),
        ("TriggerAuthentication", ["spec", "secretTargetRef", 0], {"parameter": "password"}),
    ],
    ids=lambda part: "" if isinstance(part, list) else str(part),
)
def test_what_an_operator_would_reject_is_detected(kind: str, path: list[str | int], value: Any) -> None:
    found = deepcopy(next(found for found in of_operators("production") if found["kind"] == kind))
    inside = found
    for part in path[:-1]:
        inside = inside[part]
    inside[path[-1]] = value
    (refused,) = refused_by_operators([found])
    assert refused is not None
    assert str(path[-1]) in refused or str(path[-2]) in refused
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, SCHEMAS[kind])


@needs_tools
@pytest.mark.parametrize("by_digest", [True, False])
def test_checkov_finds_nothing_beyond_the_justified_skips(by_digest: bool, tmp_path: Path) -> None:
    files = []
    for values in ALL_SETS:
        if by_digest == (values == "production"):
            files.append(tmp_path / f"{values}.yaml")
            files[-1].write_text(text(values), encoding="utf-8")
    skipped = SKIPPED_CHECKS if by_digest else SKIPPED_CHECKS | SKIPPED_WITHOUT_DIGESTS
    checked = run(
        CHECKOV / "bin/checkov", *(word for file in files for word in ("--file", file)), "--framework", "kubernetes",
        "--output", "json", "--skip-check", ",".join(skipped), "--skip-download",
    )  # fmt: skip
    report = json.loads(checked.stdout)
    failed = [(check["check_id"], check["resource"]) for check in report["results"]["failed_checks"]]
    assert failed == []
    assert report["summary"]["passed"] > 300 * len(files)


@needs_tools
@pytest.mark.parametrize(("value", "named"), REFUSED.items())
def test_unknown_or_invalid_values_are_refused_by_name(value: str, named: str) -> None:
    refused = template("--values", str(FOLDER / "ci/gpu-single-values.yaml"), "--set", value)
    assert refused.returncode != 0
    assert named in refused.stderr


def test_no_object_in_the_values_accepts_unknown_keys() -> None:
    found = list(inner_objects(VALUES_SCHEMA))
    assert len(found) >= 25
    open_to_all = VALUES_SCHEMA["properties"]["global"]
    assert [schema for schema in found if schema.get("additionalProperties") is not False] == [open_to_all]


def test_every_value_has_a_default_and_every_default_is_in_the_schema() -> None:
    defaults = yaml.safe_load((FOLDER / "values.yaml").read_text(encoding="utf-8"))
    known = VALUES_SCHEMA["properties"]
    assert known.keys() == defaults.keys()
    for name, value in defaults.items():
        if isinstance(value, dict) and "properties" in known[name] and name != "global":
            assert value.keys() == known[name]["properties"].keys(), name
