"""Alerts and dashboards query metrics that the service exports, in valid PromQL, and every alert has a runbook."""

import asyncio
import json
import re
import runpy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from adjudge_services.settings import Settings
from adjudge_services.store import prepare_store
from adjudge_services.wiring import build_app
from judge_server.api.probes import judge_metrics_page
from judge_server.engines.pool import EnginePool
from judge_server.engines.scripted import ScriptedEngine
from tests.deploy.chart import FOLDER, NAMESPACE, objects, of_kind
from tests.deploy.tools import ROOT, VENV, needs_tools, run
from tests.judge_server.support import judge

RULES = [
    rule
    for group in yaml.safe_load((FOLDER / "files/rules.yaml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
DASHBOARDS = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in FOLDER.glob("files/dashboards/*.json")
}
RUNBOOKS = ROOT / "docs/runbooks"
REQUEST = {
    "run": "r",
    "step": 1,
    "rubric": {"criteria": [{"id": "c", "description": "It is right.", "weight": 1}]},
    "reward": {"mode": "weighted_mean"},
    "groups": [{"id": "g", "prompt": "p", "responses": ["a"]}],
}
_METRIC = re.compile(r"\b((?:adjudge|process)_[a-z_]+)")
_PARSE = "import json, sys, promql_parser\nfor query in json.load(sys.stdin): promql_parser.parse(query)\n"


def panels() -> Iterator[dict[str, Any]]:
    """Return every panel of every dashboard."""
    for dashboard in DASHBOARDS.values():
        yield from dashboard["panels"]


def queries() -> list[str]:
    """Return every query, with Grafana's variables filled in."""
    of_panels = [target["expr"] for panel in panels() for target in panel["targets"]]
    shown = [query.replace("$__rate_interval", "1m").replace("$namespace", ".*") for query in of_panels]
    return [*(rule["expr"] for rule in RULES), *shown]


async def of_a_pool() -> str:
    """The metrics of a judge over two endpoints."""
    pooled = await judge(EnginePool({"a": ScriptedEngine, "b": ScriptedEngine}))  # type: ignore[arg-type]
    try:
        return judge_metrics_page({"default": pooled}).decode()
    finally:
        await pooled.close()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Sample names and labels of the metrics of a pool, and of a service that judged and ran an operation."""
    cascade: Any = {"cascade": ["default", "large"], "band": [0, 1]}
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("data"),
        engine_url="scripted://hash",
        engines={"large": "scripted://yes", "both": cascade},
    )
    found: dict[str, set[str]] = {}
    asyncio.run(prepare_store(settings))
    with TestClient(build_app(settings, wait_for_judge=True), "http://localhost") as client:
        for judge_name in ("default", "both"):
            assert client.post("/v1/rewards", json=REQUEST | {"judge": judge_name}).status_code == 200
        submitted = client.post("/v1/operations", json={"kind": "score", **REQUEST})
        with client.stream("GET", f"{submitted.headers['Location']}/events") as events:
            assert "done" in "".join(events.iter_text())
        while client.get("/v1/ledger").json()["waiting"]:
            time.sleep(0.05)
        page = client.get("/metrics").text
    for line in f"{page}\n{asyncio.run(of_a_pool())}".splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition("{")
            found.setdefault(name.split(" ")[0], set()).update(re.findall(r'([a-z_]+)="', rest))
        elif line.startswith("# TYPE"):
            _, _, name, kind = line.split(" ")
            if kind != "histogram":
                found.setdefault(name, set())
    return found


def test_every_queried_metric_is_exported(exported: dict[str, set[str]]) -> None:
    asked = {name for query in queries() for name in _METRIC.findall(query)}
    assert len(asked) > 15
    assert asked - exported.keys() == set()


def test_queried_labels_belong_to_the_service_or_to_prometheus(exported: dict[str, set[str]]) -> None:
    known = {"namespace", "job", "instance", "le"}
    for query in queries():
        for name, matchers in re.findall(r"((?:adjudge|process)_[a-z_]+)\{([^}]*)\}", query):
            labels = set(re.findall(r'([a-z_]+)(?:=|!=|=~|!~)"', matchers))
            assert labels <= known | exported[name], f"{name} in {query}"


def asked_in_the_cluster() -> list[str]:
    """Return the queries of alerts and of KEDA as the chart renders them."""
    (rules,) = of_kind("production", "PrometheusRule")
    triggers = [trigger for found in of_kind("production", "ScaledObject") for trigger in found["spec"]["triggers"]]
    (scaling,) = [trigger["metadata"]["query"] for trigger in triggers if trigger["type"] == "prometheus"]
    return [*(rule["expr"] for group in rules["spec"]["groups"] for rule in group["rules"]), scaling]


@needs_tools
def test_every_query_is_valid_promql() -> None:
    parsed = run(VENV / "bin/python", "-c", _PARSE, stdin=json.dumps([*queries(), *asked_in_the_cluster()]))
    assert parsed.returncode == 0, parsed.stderr


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_has_a_severity_a_summary_and_a_runbook(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"]
    page = ROOT / rule["annotations"]["runbook_url"]
    text = page.read_text(encoding="utf-8")
    assert f"`{rule['alert']}`" in text
    assert {"What it means", "What to look at", "What to do"} <= set(re.findall(r"^## (.+)$", text, re.MULTILINE))


def test_every_runbook_belongs_to_an_alert_and_is_listed() -> None:
    linked = {Path(rule["annotations"]["runbook_url"]).name for rule in RULES}
    pages = {page.name for page in RUNBOOKS.glob("*.md")} - {"README.md"}
    assert pages == linked
    listed = (RUNBOOKS / "README.md").read_text(encoding="utf-8")
    assert [page for page in pages if f"({page})" not in listed] == []


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_matches_its_source(name: str) -> None:
    source = runpy.run_path(str(ROOT / "docker/monitoring/dashboards.py"))
    assert source["DASHBOARDS"].keys() == DASHBOARDS.keys()
    assert json.loads(source["dashboard"](name)) == DASHBOARDS[name], "run python docker/monitoring/dashboards.py"


@needs_tools
def test_the_chart_contains_all_dashboards_and_alerts_with_runbook_urls() -> None:
    (rules,) = of_kind("production", "PrometheusRule")
    addresses = [r["annotations"]["runbook_url"] for group in rules["spec"]["groups"] for r in group["rules"]]
    assert all(address.startswith("https://docs.example.org/adjudge/runbooks/") for address in addresses)
    assert len(addresses) == len(RULES)
    brought = {name for found in of_kind("production", "ConfigMap") for name in found["data"]}
    assert brought == {f"{name}.json" for name in DASHBOARDS}
    for found in of_kind("production", "ConfigMap"):
        assert all(json.loads(text)["panels"] for text in found["data"].values())


@needs_tools
def test_the_chart_queries_up_only_in_its_own_namespace() -> None:
    selectors = [found for query in asked_in_the_cluster() for found in re.findall(r"\bup\b(\{[^}]*\})?", query)]
    assert len(selectors) >= 4
    assert [found for found in selectors if not found.startswith(f'{{namespace="{NAMESPACE}",')] == []


@needs_tools
@pytest.mark.parametrize(("settings", "shown"), [((), True), (("key",), True), (("open",), False)])
def test_prometheus_gets_a_key_unless_metrics_are_open(settings: tuple[str, ...], shown: bool) -> None:
    given = [word for value in settings for word in ("--set", f"settings.ADJUDGE_METRICS={value}")]
    monitors = [found for found in objects("production", *given) if found["kind"] == "ServiceMonitor"]
    with_key = [found["metadata"]["name"] for found in monitors if "authorization" in found["spec"]["endpoints"][0]]
    assert with_key == (["adjudge-api", "adjudge-judge"] if shown else [])
    assert len(monitors) == 3


def test_a_job_without_a_target_raises_an_alert() -> None:
    (absent,) = [rule["expr"] for rule in RULES if rule["alert"] == "AdjudgeAbsent"]
    prometheus = yaml.safe_load((ROOT / "docker/monitoring/prometheus.yaml").read_text(encoding="utf-8"))
    jobs = [f'absent(up{{job="{job["job_name"]}"}})' for job in prometheus["scrape_configs"]]
    assert absent == " or ".join(jobs)


def test_scrape_jobs_have_the_names_that_rules_and_dashboards_use() -> None:
    prometheus = yaml.safe_load((ROOT / "docker/monitoring/prometheus.yaml").read_text(encoding="utf-8"))
    assert [job["job_name"] for job in prometheus["scrape_configs"]] == ["api", "judge", "worker"]
    named = {
        name
        for query in queries()
        for part in re.findall(r'job(?:=|!=|=~)"([^"]+)"', query)
        for name in part.split("|")
    }
    assert named == {"api", "judge", "worker"}
