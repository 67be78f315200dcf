"""Which pods can reach which under the chart's network policies, evaluated as Kubernetes does."""

from itertools import product
from typing import Any

import pytest

from tests.deploy.chart import ALL_SETS, component, fits, objects, of_kind, pods
from tests.deploy.tools import needs_tools

pytestmark = needs_tools

PORTS = {"api": 8000, "judge": 8001, "worker": 8002, "vllm": 8000, "postgres": 5432, "redis": 6379}
CALLS = {
    ("worker", "api"), ("toolbox", "api"), ("test", "api"), ("api", "judge"), ("judge", "vllm"),
    ("api", "postgres"), ("worker", "postgres"), ("migrate", "postgres"), ("toolbox", "postgres"),
    ("api", "redis"), ("judge", "redis"), ("worker", "redis"),
}  # fmt: skip
Labels = dict[str, str]


def rules(values: str, labels: Labels, direction: str) -> list[dict[str, Any]] | None:
    """Return the rules for a pod in one direction, or None if no policy covers it and everything is allowed."""
    policies = [
        found["spec"]
        for found in of_kind(values, "NetworkPolicy")
        if fits(found["spec"]["podSelector"]["matchLabels"], labels)
        and direction.title() in found["spec"]["policyTypes"]
    ]
    return [rule for policy in policies for rule in policy.get(direction, [])] if policies else None


def allowed(values: str, source: Labels, target: Labels, port: int) -> bool:
    """Whether one pod can reach another: both policies must allow it."""

    def named(peers: list[dict[str, Any]], other: Labels) -> bool:
        return any(
            "namespaceSelector" not in peer and fits(peer["podSelector"]["matchLabels"], other)
            for peer in peers
            if "podSelector" in peer
        )

    ways = ((source, "egress", "to", target), (target, "ingress", "from", source))
    for labels, direction, peers, other in ways:
        given = rules(values, labels, direction)
        assert given is not None, f"no policy covers {labels}"
        if not any(port in {p["port"] for p in rule["ports"]} and named(rule[peers], other) for rule in given):
            return False
    return True


def reaches_the_world(rule: dict[str, Any]) -> bool:
    """Whether an egress rule opens port 443 to every address."""
    return {"ipBlock": {"cidr": "0.0.0.0/0"}} in rule["to"] and rule["ports"][0]["port"] == 443


@pytest.mark.parametrize("values", ALL_SETS)
def test_pods_reach_what_they_call_and_nothing_else(values: str) -> None:
    present = {component(labels): labels for _, labels, _ in pods(values)}
    reached = {
        (source, target)
        for source, target in product(present, present)
        if target in PORTS and allowed(values, present[source], present[target], PORTS[target])
    }
    assert reached == {(source, target) for source, target in CALLS if {source, target} <= present.keys()}


@pytest.mark.parametrize("values", ["gpu-single", "gpu-pool", "production"])
def test_external_stores_are_reached_only_by_the_pods_that_use_them(values: str) -> None:
    for _, labels, _ in pods(values):
        ports = {
            port["port"]
            for rule in rules(values, labels, "egress") or []
            if any({"ipBlock", "namespaceSelector"} & peer.keys() for peer in rule["to"])
            for port in rule["ports"]
        } - {53, 443}
        wanted = {
            PORTS[target] for source, target in CALLS if source == component(labels) and target in ("postgres", "redis")
        }
        assert ports == wanted, component(labels)


def test_stores_in_the_cluster_are_reached_by_selector() -> None:
    (worker,) = [labels for _, labels, _ in pods("gpu-pool") if component(labels) == "worker"]
    reached = {rule["ports"][0]["port"]: rule["to"] for rule in rules("gpu-pool", worker, "egress") or []}
    namespace = {"matchLabels": {"kubernetes.io/metadata.name": "stores"}}
    for port, name in {5432: "postgres", 6379: "valkey"}.items():
        assert reached[port] == [{"namespaceSelector": namespace, "podSelector": {"matchLabels": {"app": name}}}]
    assert reached[443] == [{"ipBlock": {"cidr": "10.30.0.5/32"}}]


@pytest.mark.parametrize("values", ALL_SETS)
def test_only_pods_that_download_a_model_reach_the_internet(values: str) -> None:
    found = {
        component(labels)
        for _, labels, _ in pods(values)
        for rule in rules(values, labels, "egress") or []
        if reaches_the_world(rule)
    }
    assert found == ({"vllm"} if values == "gpu-pool" else {"judge"})


def test_no_pod_reaches_the_internet_if_models_are_already_present() -> None:
    policies = [
        found["spec"]
        for found in objects("production", "--set", "networkPolicy.modelDownload=false")
        if found["kind"] == "NetworkPolicy"
    ]
    assert len(policies) >= 6
    assert not [rule for policy in policies for rule in policy.get("egress", []) if reaches_the_world(rule)]


def test_named_trainers_reach_only_the_api() -> None:
    trainer = {"adjudge.io/client": "true"}
    for _, labels, _ in pods("gpu-single"):
        callers = [
            peer
            for rule in rules("gpu-single", labels, "ingress") or []
            for peer in rule["from"]
            if fits(peer.get("podSelector", {"matchLabels": {"never": ""}})["matchLabels"], trainer)
        ]
        assert bool(callers) == (component(labels) == "api")
