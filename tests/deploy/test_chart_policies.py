"""Rules that hold for every pod of the chart with any value set, and consistency between its parts."""

import re
from typing import Any

import pytest

from tests.deploy import dockerfile
from tests.deploy.chart import ALL_SETS, TRIAL, component, containers, environment, fits, of_kind, pods, text
from tests.deploy.tools import needs_tools

pytestmark = [needs_tools, pytest.mark.parametrize("values", ALL_SETS)]

LISTENING = {"api", "judge", "worker", "vllm", "postgres", "redis"}
SECRET_NAME = {"production": "adjudge-production", TRIAL: "adjudge-trial"}
SMALL = {"cpu-dev", TRIAL}
"""The sets with a judge on the CPU and the chart's own stores."""


def test_no_image_is_tagged_latest_and_our_images_are_targets_of_the_dockerfile(values: str) -> None:
    for name, container in containers(values):
        image = container["image"]
        assert re.search(r":[^/]*\d[^/]*$|@sha256:[0-9a-f]{64}$", image), f"{name}: {image}"
        if ours := re.search(r"/adjudge-([a-z-]+)[:@]", image):
            assert ours[1] in dockerfile.stages(), name


def test_containers_have_requests_and_limits(values: str) -> None:
    for name, container in containers(values):
        for part in ("requests", "limits"):
            assert container["resources"][part].keys() >= {"cpu", "memory", "ephemeral-storage"}, name
        gpus = [container["resources"][part].get("nvidia.com/gpu") for part in ("requests", "limits")]
        assert gpus[0] == gpus[1], name


def test_only_engines_request_gpus(values: str) -> None:
    having = {name for name, container in containers(values) if "nvidia.com/gpu" in container["resources"]["limits"]}
    engine = {"gpu-pool": "StatefulSet/adjudge-vllm/vllm"}.get(values, "StatefulSet/adjudge-judge/judge")
    assert having == (set() if values in SMALL else {engine})


def test_no_container_runs_as_root_writes_its_root_filesystem_or_gains_privileges(values: str) -> None:
    for name, _, spec in pods(values):
        assert spec["securityContext"]["runAsNonRoot"], name
        assert spec["securityContext"]["runAsUser"] > 0, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert spec["automountServiceAccountToken"] is False, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(), name
        assert not [volume for volume in spec.get("volumes", []) if "hostPath" in volume], name
    for name, container in containers(values):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"], name
        assert context["allowPrivilegeEscalation"] is False, name
        assert context["capabilities"] == {"drop": ["ALL"]}, name


def test_writable_volumes_have_a_size_limit(values: str) -> None:
    for name, _, spec in pods(values):
        for volume in spec.get("volumes", []):
            assert volume["emptyDir"]["sizeLimit"], f"{name}: {volume['name']}"


def test_every_mount_has_its_volume_and_every_volume_is_mounted(values: str) -> None:
    for found in of_kind(values, "Deployment", "StatefulSet", "Job"):
        spec = found["spec"]["template"]["spec"]
        claims = {claim["metadata"]["name"] for claim in found["spec"].get("volumeClaimTemplates", [])}
        volumes = {volume["name"] for volume in spec.get("volumes", [])} | claims
        used = {
            mount["name"]
            for container in [*spec.get("initContainers", []), *spec["containers"]]
            for mount in container["volumeMounts"]
        }
        assert used == volumes, found["metadata"]["name"]


def test_secrets_come_by_reference_and_the_chart_contains_none_but_generated_ones(values: str) -> None:
    made = [found["metadata"]["name"] for found in of_kind(values, "Secret")]
    assert made == {"cpu-dev": ["adjudge-bootstrap-key"], TRIAL: ["adjudge-trial"]}.get(values, [])
    for name, container in containers(values):
        for variable, value in environment(container).items():
            if values == TRIAL and re.fullmatch("ADJUDGE_(DATABASE|CACHE|QUEUE)_URL", variable):
                assert re.fullmatch(r"(postgresql://adjudge@|redis://)adjudge-[a-z]+:\d+/\w+", value), "no password"
            elif re.search("SECRET|PASSWORD|TOKEN|API_KEY|DATABASE_URL|CACHE_URL|QUEUE_URL", variable):
                assert value["secretKeyRef"]["name"] == SECRET_NAME.get(values, "adjudge") + (
                    "-bootstrap-key" if values == "cpu-dev" and value["secretKeyRef"]["key"] == "bootstrap-key" else ""
                ), f"{name}: {variable}"
    assert not re.search(r"://[^/\s]*:[^/\s]*@", text(values))


def test_only_containers_that_download_a_model_get_the_optional_hub_token(values: str) -> None:
    tokens = {name: env["HF_TOKEN"] for name, c in containers(values) if "HF_TOKEN" in (env := environment(c))}
    loading = {**dict.fromkeys(SMALL, "StatefulSet/adjudge-judge/model"), "gpu-pool": "StatefulSet/adjudge-vllm/vllm"}
    assert tokens.keys() == {loading.get(values, "StatefulSet/adjudge-judge/judge")}
    (token,) = tokens.values()
    assert token["secretKeyRef"]["key"] == "hf-token"
    assert token["secretKeyRef"]["optional"]


def test_the_three_probes_differ_and_readiness_ignores_shared_dependencies(values: str) -> None:
    for name, labels, spec in pods(values):
        for container in spec["containers"]:
            probes = [container.get(probe) for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
            if component(labels) not in LISTENING:
                assert probes == [None, None, None], name
                continue
            assert len({repr(probe) for probe in probes}) == 3, name
            if component(labels) in ("api", "judge", "worker"):
                assert probes[1]["httpGet"]["path"] == "/healthz", name
                # Workers serve no requests. Stores and caches are shared by all replicas, and judges by all apis.
                ready = {"api": "/readyz?only=replica", "judge": "/readyz?only=judge", "worker": "/readyz"}
                assert probes[2]["httpGet"]["path"] == ready[component(labels)], name


def test_selectors_match_their_own_pods_and_no_others(values: str) -> None:
    labelled = [(name, labels) for name, labels, _ in pods(values)]
    for found in of_kind(values, "Deployment", "StatefulSet", "PodDisruptionBudget"):
        chosen = [name for name, labels in labelled if fits(found["spec"]["selector"]["matchLabels"], labels)]
        assert len(chosen) == 1, found["metadata"]["name"]
        if found["kind"] != "PodDisruptionBudget":
            assert chosen == [f"{found['kind']}/{found['metadata']['name']}"]
    for found in of_kind(values, "Service"):
        chosen = [spec for _, labels, spec in pods(values) if fits(found["spec"]["selector"], labels)]
        assert len(chosen) == 1, found["metadata"]["name"]
        ports = {port["name"] for container in chosen[0]["containers"] for port in container["ports"]}
        assert {port["targetPort"] for port in found["spec"]["ports"]} <= ports
    for found in of_kind(values, "ServiceMonitor"):
        services = [
            service
            for service in of_kind(values, "Service")
            if fits(found["spec"]["selector"]["matchLabels"], service["metadata"]["labels"])
        ]
        assert len(services) == 1
        assert found["spec"]["endpoints"][0]["port"] in {port["name"] for port in services[0]["spec"]["ports"]}


def test_each_workload_has_at_most_one_autoscaler_and_only_unscaled_ones_set_replicas(values: str) -> None:
    targets = [found["spec"]["scaleTargetRef"] for found in of_kind(values, "HorizontalPodAutoscaler", "ScaledObject")]
    names = [(target["kind"], target["name"]) for target in targets]
    assert len(set(names)) == len(names)
    scaled = {
        "gpu-pool": {"adjudge-api", "adjudge-worker"},
        "production": {"adjudge-api", "adjudge-judge", "adjudge-worker"},
    }
    assert {name for _, name in names} == scaled.get(values, set())
    for found in of_kind(values, "Deployment", "StatefulSet"):
        place = (found["kind"], found["metadata"]["name"])
        assert ("replicas" in found["spec"]) == (place not in names), place


def test_the_api_is_given_the_url_of_every_possible_judge(values: str) -> None:
    told = environment(dict(containers(values))["Deployment/adjudge-api/api"])["ADJUDGE_JUDGES"].split()
    (judge,) = [found for found in of_kind(values, "StatefulSet") if found["metadata"]["name"] == "adjudge-judge"]
    scaled = [s for s in of_kind(values, "ScaledObject") if s["spec"]["scaleTargetRef"]["name"] == "adjudge-judge"]
    most = scaled[0]["spec"]["maxReplicaCount"] if scaled else judge["spec"]["replicas"]
    service = judge["spec"]["serviceName"]
    assert told == [f"http://adjudge-judge-{index}.{service}:8001" for index in range(most)]


def test_the_judge_is_given_an_engine_that_its_image_contains(values: str) -> None:
    judge = dict(containers(values))["StatefulSet/adjudge-judge/judge"]
    engines = environment(judge)["ADJUDGE_ENGINE_URL"].split()
    expected = {
        **dict.fromkeys(SMALL, ("adjudge-judge-cpu", "llamacpp://qwen2.5-coder-1.5b")),
        "gpu-single": ("adjudge-judge", "vllm://Qwen/Qwen2.5-7B-Instruct?context=16384"),
        "gpu-pool": ("adjudge-api", "openai+http://adjudge-vllm-0.adjudge-vllm:8000/v1"),
        "production": ("adjudge-judge", "vllm://Qwen/Qwen2.5-7B-Instruct"),
    }
    assert re.split("[:@]", judge["image"].rpartition("/")[2])[0] == expected[values][0]
    assert engines[0] == expected[values][1]
    assert len(engines) == (4 if values == "gpu-pool" else 1)


def test_an_external_database_is_migrated_before_anything_new_starts(values: str) -> None:
    (job,) = of_kind(values, "Job")
    hooks = job["metadata"].get("annotations", {})
    assert hooks.get("helm.sh/hook") == (None if values in SMALL else "pre-install,pre-upgrade")
    account = job["spec"]["template"]["spec"]["serviceAccountName"]
    assert account == "default", "the chart's own account is made after the hook"


def test_pods_of_a_workload_are_spread_over_zones_and_nodes(values: str) -> None:
    wanted = "DoNotSchedule" if values == "production" else "ScheduleAnyway"
    for name, labels, spec in pods(values):
        keys = {constraint["topologyKey"] for constraint in spec["topologySpreadConstraints"]}
        assert keys == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}, name
        for constraint in spec["topologySpreadConstraints"]:
            assert fits(constraint["labelSelector"]["matchLabels"], labels), name
            assert constraint["whenUnsatisfiable"] == wanted, name


def test_every_argument_is_an_adjudge_command(values: str) -> None:
    from tests.services.command_tree import commands

    started: dict[str, Any] = {n: c for n, c in containers(values) if "/adjudge-" in c["image"] and "command" not in c}
    assert len(started) >= 4
    names = {path[0] for path in commands()}
    for name, container in started.items():
        assert container["args"][0] in names, name


def test_processes_stop_before_their_pods_are_killed(values: str) -> None:
    given = ("--set", "api.drainSeconds=200", "--set", "judge.drainSeconds=300")
    specs = {component(labels): spec for _, labels, spec in pods(values, *given)}
    for part, killed_s in (("api", 200), ("judge", 300)):
        assert specs[part]["terminationGracePeriodSeconds"] == killed_s
        assert environment(specs[part]["containers"][0])["ADJUDGE_DRAIN_S"] == str(killed_s - 20)
