"""Who reaches whom under the chart's network policies, worked out as Kubernetes does."""

from itertools import product
from typing import Any

import pytest

from tests.deploy.chart import VALUE_SETS, component, fits, of_kind, pods
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
    """The rules for a pod in one direction; None where no policy speaks of it, so that everything is allowed."""
    policies = [
        found["spec"]
        for found in of_kind(values, "NetworkPolicy")
        if fits(found["spec"]["podSelector"]["matchLabels"], labels)
        and direction.title() in found["spec"]["policyTypes"]
    ]
    return [rule for policy in policies for rule in policy.get(direction, [])] if policies else None


def allowed(values: str, source: Labels, target: Labels, port: int) -> bool:
    """Whether one pod reaches another: both policies must allow it."""

    def named(peers: list[dict[str, Any]], other: Labels) -> bool:
        return any(
            "namespaceSelector" not in peer and fits(peer["podSelector"]["matchLabels"], other)
            for peer in peers
            if "podSelector" in peer
        )

    ways = ((source, "egress", "to", target), (target, "ingress", "from", source))
    for labels, direction, peers, other in ways:
        given = rules(values, labels, direction)
        assert given is not None, f"no policy speaks of {labels}"
        if not any(port in {p["port"] for p in rule["ports"]} and named(rule[peers], other) for rule in given):
            return False
    return True


@pytest.mark.parametrize("values", VALUE_SETS)
def test_pods_reach_what_they_call_and_nothing_else(values: str) -> None:
    present = {component(labels): labels for _, labels, _ in pods(values)}
    reached = {
        (source, target)
        for source, target in product(present, present)
        if target in PORTS and allowed(values, present[source], present[target], PORTS[target])
    }
    assert reached == {(source, target) for source, target in CALLS if {source, target} <= present.keys()}


@pytest.mark.parametrize("values", ["gpu-single", "gpu-pool", "production"])
def test_stores_elsewhere_are_reached_by_those_that_keep_something_there(values: str) -> None:
    for _, labels, _ in pods(values):
        ports = {
            port["port"]
            for rule in rules(values, labels, "egress") or []
            if any("ipBlock" in peer for peer in rule["to"])
            for port in rule["ports"]
        } - {443}
        wanted = {
            PORTS[target] for source, target in CALLS if source == component(labels) and target in ("postgres", "redis")
        }
        assert ports == wanted, component(labels)


def test_only_pods_that_load_a_model_reach_the_world_and_in_production_none_does() -> None:
    for values, loading in {"cpu-dev": {"judge"}, "gpu-pool": {"vllm"}, "production": set()}.items():
        found = {
            component(labels)
            for _, labels, _ in pods(values)
            for rule in rules(values, labels, "egress") or []
            if {"ipBlock": {"cidr": "0.0.0.0/0"}} in rule["to"] and rule["ports"][0]["port"] == 443
        }
        assert found == loading, values


def test_trainers_reach_the_api_alone_if_they_are_named() -> None:
    trainer = {"adjudge.io/client": "true"}
    for _, labels, _ in pods("gpu-single"):
        callers = [
            peer
            for rule in rules("gpu-single", labels, "ingress") or []
            for peer in rule["from"]
            if fits(peer.get("podSelector", {"matchLabels": {"never": ""}})["matchLabels"], trainer)
        ]
        assert bool(callers) == (component(labels) == "api")
