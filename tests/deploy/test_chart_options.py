"""Options that a cluster's operators set in the chart reach the right objects, with Helm 3.17 and Helm 4."""

import base64
import importlib.util
import json
import re
from functools import cache, reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.chart import FOLDER, NAMESPACE, VALUE_SETS, Manifest, component, environment, of_kind
from tests.deploy.chart import objects as objects_of_values
from tests.deploy.tools import HELM, HELM_3, ROOT, VENV, needs_tools, run

pytestmark = needs_tools

COMPONENTS = ["api", "judge", "vllm", "worker", "migrate", "toolbox"]
POD: Manifest = {
    "extraEnv": [{"name": "ADDED", "value": "1"}, {"name": "OTEL_SERVICE_NAME", "value": "mine"}],
    "extraEnvFrom": [{"configMapRef": {"name": "more"}}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}],
    "podAnnotations": {"sidecar.istio.io/inject": "false"},
    "podLabels": {"team": "rl"},
    "nodeSelector": {"pool": "judges"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]
            }
        }
    },
    "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway"}],
    "priorityClassName": "high",
    "runtimeClassName": "nvidia",
    "schedulerName": "volcano",
    "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
    "hostAliases": [{"ip": "10.0.0.5", "hostnames": ["hub.example.org"]}],
    "initContainers": [{"name": "first", "image": "busybox:1.37"}],
    "sidecars": [{"name": "beside", "image": "busybox:1.37"}],
    "lifecycle": {"preStop": {"sleep": {"seconds": 9}}},
}
PLACED = [
    "nodeSelector", "affinity", "topologySpreadConstraints", "priorityClassName", "runtimeClassName", "schedulerName",
    "dnsConfig", "hostAliases",
]  # fmt: skip
"""Values that are copied into the pod unchanged."""
EVERYTHING: Manifest = {
    **dict.fromkeys(COMPONENTS, POD),
    "global": {"imageRegistry": "mirror.example.org/all", "imagePullSecrets": [{"name": "mirror"}], "anything": 1},
    "commonLabels": {"cost-centre": "7"},
    "commonAnnotations": {"owner": "rl"},
    "settings": {"OTEL_SERVICE_NAME": "chart", "HTTPS_PROXY": "http://proxy:3128", "HF_ENDPOINT": "https://hub"}
    | {"NCCL_DEBUG": "INFO", "VLLM_LOGGING_LEVEL": "DEBUG", "ADJUDGE_LEDGER": "verdicts"},
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/adjudge"}},
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "annotations": {"a": "b"},
        "hosts": [{"host": "adjudge.example.org"}],
        "tls": [{"secretName": "tls", "hosts": ["adjudge.example.org"]}],
    },
    "extraObjects": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-mine"}, "data": {"a": "b"}}
    ],
}


def rendered(folder: Path, values: str, more: Manifest, helm: Path = HELM) -> list[Manifest]:
    """Return the objects of a value set with more values."""
    file = folder / "values.yaml"
    file.write_text(json.dumps(more), encoding="utf-8")
    done = run(
        helm, "template", "adjudge", FOLDER, "--namespace", NAMESPACE,
        "--values", FOLDER / f"ci/{values}-values.yaml", "--values", file,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def pods(found: list[Manifest]) -> dict[str, Manifest]:
    """Return the pod template of each component that has a controller."""
    made = [o["spec"]["template"] for o in found if o["kind"] in ("Deployment", "StatefulSet", "Job")]
    return {component(template["metadata"]["labels"]): template for template in made}


@pytest.mark.parametrize("helm", [HELM_3, HELM], ids=["3.17", "4"])
def test_every_component_supports_every_pod_option(helm: Path, tmp_path: Path) -> None:
    found = rendered(tmp_path, "gpu-pool", EVERYTHING, helm)
    templates = pods(found)
    assert templates.keys() == set(COMPONENTS)
    for name, template in templates.items():
        spec = template["spec"]
        container = next(one for one in spec["containers"] if one["name"] == name)
        for key in PLACED:
            own = {"nvidia.com/gpu.present": "true"} if (name, key) == ("vllm", "nodeSelector") else {}
            assert spec[key] == (POD[key] | own if own else POD[key]), f"{name}: {key}"
        assert spec["tolerations"] == POD["tolerations"], name
        assert spec["initContainers"][-1] == POD["initContainers"][0], name
        assert [one["name"] for one in spec["containers"]] == [name, "beside"]
        assert POD["extraVolumes"][0] in spec["volumes"], name
        assert POD["extraVolumeMounts"][0] in container["volumeMounts"], name
        assert container["envFrom"] == POD["extraEnvFrom"], name
        assert container["lifecycle"] == POD["lifecycle"], name
        variables = environment(container)
        assert (variables["ADDED"], variables["OTEL_SERVICE_NAME"]) == ("1", "mine"), name
        assert len(variables) == len(container["env"]), f"{name}: duplicate variable"
        assert {"HTTPS_PROXY", "HF_ENDPOINT", "NCCL_DEBUG", "VLLM_LOGGING_LEVEL"} <= variables.keys(), name
        assert ("ADJUDGE_LEDGER" in variables) == (name != "vllm")
        assert template["metadata"]["labels"].items() >= {"team": "rl", "cost-centre": "7"}.items(), name
        assert template["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false", "owner": "rl"}, name
        assert {"name": "mirror"} in spec["imagePullSecrets"], name
        assert container["image"].startswith("mirror.example.org/all/"), name
    own_objects = [o for o in found if o["metadata"]["name"] != "adjudge-mine"]
    assert len(own_objects) == len(found) - 1
    for one in own_objects:
        assert one["metadata"]["labels"]["cost-centre"] == "7", one["metadata"]["name"]
        assert one["metadata"]["annotations"]["owner"] == "rl", one["metadata"]["name"]


def test_kubernetes_accepts_the_objects_rendered_with_every_option(tmp_path: Path) -> None:
    known = [o for o in rendered(tmp_path, "gpu-pool", EVERYTHING) if "." not in o["apiVersion"].partition("/")[0]]
    known += [o for o in rendered(tmp_path, "gpu-pool", EVERYTHING) if o["kind"] in ("Ingress", "NetworkPolicy")]
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(known), encoding="utf-8")
    validated = run(VENV / "bin/kubernetes-validate", "--strict", file)
    assert validated.returncode == 0, validated.stdout
    assert "Couldn't find schema" not in validated.stdout


@pytest.mark.parametrize("helm", [HELM_3, HELM], ids=["3.17", "4"])
def test_openshift_chooses_the_user_where_fields_or_whole_contexts_are_null(helm: Path, tmp_path: Path) -> None:
    values = {
        "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
        "worker": {"podSecurityContext": None, "containerSecurityContext": None},
        "api": {"containerSecurityContext": {"readOnlyRootFilesystem": False}},
    }
    templates = pods(rendered(tmp_path, "cpu-dev", values, helm))
    for name, template in templates.items():
        context = template["spec"].get("securityContext", {})
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & context.keys(), name
        assert (context == {}) == (name == "worker")
        container = template["spec"]["containers"][0]
        assert ("securityContext" in container) == (name != "worker")
        if name != "worker":
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
            assert container["securityContext"]["readOnlyRootFilesystem"] == (name != "api"), name


def test_secrets_of_cloudnativepg_and_bitnami_work_unchanged(tmp_path: Path) -> None:
    bitnami = {"existingSecret": "kv-redis", "passwordKey": "redis-password", "host": "kv-redis-master"}
    values = {"database": {"existingSecret": "pg-app", "urlKey": "uri"}, "cache": bitnami, "queue": bitnami}
    found = rendered(tmp_path, "gpu-pool", values)
    api = environment(pods(found)["api"]["spec"]["containers"][0])
    assert api["ADJUDGE_DATABASE_URL"] == {"secretKeyRef": {"name": "pg-app", "key": "uri"}}
    assert api["ADJUDGE_QUEUE_PASSWORD"] == {"secretKeyRef": {"name": "kv-redis", "key": "redis-password"}}
    assert (api["ADJUDGE_CACHE_URL"], api["ADJUDGE_QUEUE_URL"]) == (
        "redis://kv-redis-master:6379/0",
        "redis://kv-redis-master:6379/1",
    )
    (scaled,) = [o for o in found if o["kind"] == "ScaledObject"]
    assert scaled["spec"]["triggers"][0]["metadata"]["address"] == "kv-redis-master:6379"
    (authentication,) = [o for o in found if o["kind"] == "TriggerAuthentication"]
    assert authentication["spec"]["secretTargetRef"] == [
        {"parameter": "password", "name": "kv-redis", "key": "redis-password"}
    ]
    postgres = {"existingSecret": "pg", "passwordKey": "password", "host": "pg", "options": "sslmode=require"}
    api = environment(pods(rendered(tmp_path, "gpu-pool", {"database": postgres}))["api"]["spec"]["containers"][0])
    assert api["ADJUDGE_DATABASE_URL"] == "postgresql://adjudge@pg:5432/adjudge?sslmode=require"
    assert api["ADJUDGE_DATABASE_PASSWORD"] == {"secretKeyRef": {"name": "pg", "key": "password"}}


def test_other_devices_and_an_existing_claim_replace_the_charts(tmp_path: Path) -> None:
    values = {
        "judge": {
            "gpus": 0,
            "resources": {"limits": {"amd.com/gpu": 1, "nvidia.com/mig-3g.40gb": "1"}},
            "cache": {"existingClaim": "models", "accessModes": ["ReadWriteMany"]},
        }
    }
    found = rendered(tmp_path, "gpu-single", values)
    spec = pods(found)["judge"]["spec"]
    limits = spec["containers"][0]["resources"]["limits"]
    assert (limits["amd.com/gpu"], limits["nvidia.com/mig-3g.40gb"]) == (1, "1")
    assert "nvidia.com/gpu" not in limits
    assert {"name": "models", "persistentVolumeClaim": {"claimName": "models"}} in spec["volumes"]
    assert not [o for o in found if o["kind"] == "StatefulSet" and o["spec"].get("volumeClaimTemplates")]


def test_ingress_and_http_route_lead_to_the_api(tmp_path: Path) -> None:
    route = {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["adjudge.example.org"]}
    found = rendered(tmp_path, "gpu-single", {"ingress": EVERYTHING["ingress"], "httpRoute": route})
    (service,) = [o for o in found if o["kind"] == "Service" and o["metadata"]["name"] == "adjudge-api"]
    (ingress,) = [o for o in found if o["kind"] == "Ingress"]
    assert ingress["spec"]["ingressClassName"] == "nginx"
    (path,) = ingress["spec"]["rules"][0]["http"]["paths"]
    assert path["backend"]["service"] == {"name": "adjudge-api", "port": {"name": service["spec"]["ports"][0]["name"]}}
    (http_route,) = [o for o in found if o["kind"] == "HTTPRoute"]
    (backend,) = http_route["spec"]["rules"][0]["backendRefs"]
    assert backend == {"name": "adjudge-api", "port": service["spec"]["ports"][0]["port"]}


def test_services_accounts_claims_and_extra_objects_follow_the_values(tmp_path: Path) -> None:
    listening = ["api", "judge", "vllm", "worker"]
    values = EVERYTHING | {name: POD | {"service": {"annotations": {"for": name}}} for name in listening}
    values["vllm"] |= {"cache": {"accessModes": ["ReadWriteOncePod"], "storageClass": "fast", "size": "9Gi"}}
    found = {(o["kind"], o["metadata"]["name"]): o for o in rendered(tmp_path, "gpu-pool", values)}
    for name in listening:
        annotations = found["Service", f"adjudge-{name}"]["metadata"]["annotations"]
        assert annotations == {"for": name, "owner": "rl"}
    account = found["ServiceAccount", "adjudge"]
    assert account["metadata"]["annotations"] == EVERYTHING["serviceAccount"]["annotations"] | {"owner": "rl"}
    (claim,) = found["StatefulSet", "adjudge-vllm"]["spec"]["volumeClaimTemplates"]
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOncePod"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "9Gi"}},
    }
    assert found["ConfigMap", "adjudge-mine"]["data"] == {"a": "b"}


@pytest.mark.parametrize(
    ("values", "name", "label"),
    [
        ({"fullnameOverride": "judges"}, "judges-api", "adjudge"),
        ({"nameOverride": "rubrics"}, "adjudge-rubrics-api", "rubrics"),
    ],
)
def test_names_can_be_chosen_and_policies_follow_them(values: Manifest, name: str, label: str, tmp_path: Path) -> None:
    found = rendered(tmp_path, "gpu-single", values)
    (api,) = [o for o in found if o["kind"] == "Deployment" and o["metadata"]["name"].endswith("-api")]
    assert api["metadata"]["name"] == name
    selected = {
        json.dumps(o["spec"]["podSelector"]["matchLabels"].get("app.kubernetes.io/name"))
        for o in found
        if o["kind"] == "NetworkPolicy"
    }
    assert selected == {json.dumps(label)}


def test_every_pod_uses_an_existing_service_account(tmp_path: Path) -> None:
    found = rendered(tmp_path, "gpu-pool", {"serviceAccount": {"create": False, "name": "mine"}})
    assert not [o for o in found if o["kind"] == "ServiceAccount"]
    assert {template["spec"]["serviceAccountName"] for template in pods(found).values()} == {"mine"}


def test_an_empty_list_or_mapping_counts_as_unset(tmp_path: Path) -> None:
    """`commonLabels:` without a value is null in YAML, and Helm then drops the default."""
    empty: Manifest = {}
    for path, default, _ in readme_module().described_values():
        if isinstance(default, dict | list) and not path.endswith(".autoscaling"):
            *outer, last = path.split(".")
            reduce(lambda values, key: values.setdefault(key, {}), outer, empty)[last] = None
    assert len(pods(rendered(tmp_path, "gpu-pool", empty))) == len(COMPONENTS)


@cache
def readme_module() -> Any:
    """helm/readme.py."""
    spec = importlib.util.spec_from_file_location("chart_readme", ROOT / "helm/readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_is_current_and_describes_every_value() -> None:
    written = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert written == readme_module().readme(), "run: python helm/readme.py"
    assert [path for path, _, text in readme_module().described_values() if not text] == []


@pytest.mark.parametrize("helm", [HELM_3, HELM], ids=["3.17", "4"])
def test_both_versions_of_helm_lint_the_chart_without_values(helm: Path) -> None:
    linted = run(helm, "lint", FOLDER)
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.parametrize("values", VALUE_SETS)
def test_both_versions_of_helm_render_the_same(values: str, tmp_path: Path) -> None:
    def without_random(found: list[Manifest]) -> list[Manifest]:
        return sorted((o for o in found if o["kind"] != "Secret"), key=lambda o: (o["kind"], o["metadata"]["name"]))

    older = rendered(tmp_path, values, {}, HELM_3)
    assert without_random(older) == without_random(rendered(tmp_path, values, {}))


def test_a_generated_bootstrap_key_is_valid_and_is_made_before_the_job_that_stores_it() -> None:
    (secret,) = of_kind("cpu-dev", "Secret")
    key = base64.b64decode(secret["data"]["bootstrap-key"]).decode()
    assert re.fullmatch(r"adj_[a-z2-7]{16}_[A-Za-z0-9_-]{43}", key)
    assert secret["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert int(secret["metadata"]["annotations"]["helm.sh/hook-weight"]) < 0
    (job,) = [o for o in objects_of_values("cpu-dev") if o["kind"] == "Job"]
    stored = environment(job["spec"]["template"]["spec"]["containers"][0])["ADJUDGE_BOOTSTRAP_KEY"]["secretKeyRef"]
    assert (stored["name"], stored["key"]) == (secret["metadata"]["name"], "bootstrap-key")
