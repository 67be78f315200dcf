"""Writes the Grafana dashboards into the chart, from where compose mounts them too.

A dashboard is a list of panels here: a title, a unit, and a query with a legend for each line. The JSON is Grafana's.
Run it after a change: `python docker/monitoring/dashboards.py`.
"""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "helm/adjudge/files/dashboards"
HEIGHT, WIDTH = 8, 12

API, JUDGE = 'namespace=~"$namespace",job!="judge"', 'namespace=~"$namespace",job!="api"'
"""Both count verdicts, so those of apis are taken; queues are in front of engines."""
FAILED, REUSED = f'{API},outcome="failed"', f'{API},source="reused"'

STORE = 'namespace=~"$namespace"'
UNENDED = f'{STORE},state=~"queued|running"'
"""What a store holds is told alike by every api; what was done of chunks, by whoever did it."""

Panel = tuple[str, str, list[tuple[str, str]]]


def rate(metric: str, by: str, labels: str) -> str:
    """A counter's growth a second, by some labels."""
    return f"sum by ({by}) (rate({metric}{{{labels}}}[$__rate_interval]))"


def total(metric: str, labels: str) -> str:
    """A counter's growth a second, over all its series."""
    return f"sum(rate({metric}{{{labels}}}[$__rate_interval]))"


def kept(metric: str, by: str, labels: str) -> str:
    """What a store holds, which every api tells alike, by some labels."""
    return f"sum by ({by}) (max by (namespace, kind, state) ({metric}{{{labels}}}))"


def quantile(part: float, metric: str, labels: str) -> str:
    """A quantile of a histogram."""
    return f"histogram_quantile({part}, {rate(f'{metric}_bucket', 'le', labels)})"


def waits(metric: str) -> list[tuple[str, str]]:
    """Median and tails of a histogram of judges, online work only."""
    online = f'{JUDGE},priority="online"'
    return [(quantile(part, metric, online), f"p{round(part * 100)}") for part in (0.5, 0.9, 0.99)]


JUDGING: list[Panel] = [
    ("Verdicts", "ops", [(rate("adjudge_judgements_total", "outcome", API), "{{outcome}}")]),
    (
        "Share of verdicts that failed, by kind",
        "percentunit",
        [
            (
                f"{rate('adjudge_judgements_total', 'failure', FAILED)}"
                f" / on () group_left () {total('adjudge_judgements_total', API)}",
                "{{failure}}",
            )
        ],
    ),
    ("Seconds in the queue", "s", waits("adjudge_queue_seconds")),
    ("Seconds at the engine", "s", waits("adjudge_engine_seconds")),
    (
        "Calls, now",
        "short",
        [
            (f"sum(adjudge_calls_waiting{{{JUDGE}}})", "waiting"),
            (f"sum(adjudge_calls_at_engine{{{JUDGE}}})", "at engines"),
        ],
    ),
    (
        "Requests refused for want of room",
        "reqps",
        [(rate("adjudge_requests_shed_total", "instance", API), "{{instance}}")],
    ),
    ("Prompt tokens", "short", [(rate("adjudge_prompt_tokens_total", "source", API), "{{source}}")]),
    (
        "Share of prompt tokens reused",
        "percentunit",
        [
            (
                f"{total('adjudge_prompt_tokens_total', REUSED)} / {total('adjudge_prompt_tokens_total', API)}",
                "reused",
            )
        ],
    ),
    ("Verdicts looked up", "ops", [(rate("adjudge_cache_lookups_total", "result", API), "{{result}}")]),
    (
        "Seconds of the cache",
        "s",
        [
            (
                f"histogram_quantile(0.99, {rate('adjudge_cache_seconds_bucket', 'operation, le', API)})",
                "p99 {{operation}}",
            )
        ],
    ),
]
RUNS: list[Panel] = [
    ("Share of the prompt tokens", "percentunit", [(f"max by (run) (adjudge_run_share{{{JUDGE}}})", "{{run}}")]),
    ("Calls on their way", "short", [(f"sum by (run) (adjudge_run_calls{{{JUDGE}}})", "{{run}}")]),
    ("Verdicts", "ops", [(rate("adjudge_run_judgements_total", "run", API), "{{run}}")]),
    (
        "Prompt tokens computed",
        "short",
        [(rate("adjudge_run_prompt_tokens_computed_total", "run", API), "{{run}}")],
    ),
    ("Requests of projects", "reqps", [(rate("adjudge_project_requests_total", "project", API), "{{project}}")]),
    (
        "Requests refused at the gate",
        "reqps",
        [(rate("adjudge_requests_refused_total", "project, reason", API), "{{project}} {{reason}}")],
    ),
]
MONITORS: list[Panel] = [
    (
        "Findings of monitors",
        "short",
        [(f"max by (run, monitor, severity) (adjudge_run_findings{{{API}}}) > 0", "{{run}} {{monitor}} {{severity}}")],
    ),
    ("Runs that monitors look at", "short", [(f"max(adjudge_monitored_runs{{{API}}})", "runs")]),
    (
        "Responses sampled for gold judges",
        "ops",
        [(rate("adjudge_gold_responses_total", "outcome", API), "{{outcome}}")],
    ),
    (
        "Requests whose samples wait for a gold judge",
        "short",
        [(f"adjudge_gold_requests_waiting{{{API}}}", "{{instance}}")],
    ),
    (
        "Verdicts asked of members of cascades and panels",
        "ops",
        [(rate("adjudge_member_verdicts_total", "judge, member, outcome", API), "{{judge}}: {{member}} {{outcome}}")],
    ),
    (
        "Share of verdicts on which members disagree, of those that several gave",
        "percentunit",
        [
            (
                f"{rate('adjudge_members_disagreed_total', 'judge', API)}"
                f" / {rate('adjudge_members_compared_total', 'judge', API)}",
                "{{judge}}",
            )
        ],
    ),
    (
        "Calls of cascades and panels",
        "ops",
        [(rate("adjudge_member_calls_total", "judge, member", API), "{{judge}}: {{member}}")],
    ),
    (
        "Prompt tokens of cascades and panels",
        "short",
        [
            (
                rate("adjudge_member_prompt_tokens_total", "judge, member, source", API),
                "{{judge}}: {{member}} {{source}}",
            )
        ],
    ),
]
OPERATIONS: list[Panel] = [
    (
        "Operations that have not ended",
        "short",
        [(kept("adjudge_operations", "kind, state", UNENDED), "{{kind}} {{state}}")],
    ),
    ("Their chunks", "short", [(kept("adjudge_operation_chunks", "state", STORE), "{{state}}")]),
    (
        "Chunks that came to an end",
        "ops",
        [(rate("adjudge_chunk_attempts_total", "kind, outcome", STORE), "{{kind}} {{outcome}}")],
    ),
    (
        "Seconds of a chunk",
        "s",
        [
            (
                f"histogram_quantile(0.9, {rate('adjudge_chunk_seconds_bucket', 'kind, le', STORE)})",
                "p90 {{kind}}",
            )
        ],
    ),
    ("Age of what has waited longest", "s", [(f"max(adjudge_operation_chunks_oldest_seconds{{{STORE}}})", "waits")]),
    ("Chunks in work", "short", [(f"adjudge_chunks_in_work{{{STORE}}}", "{{instance}}")]),
]
LEDGER: list[Panel] = [
    ("Verdicts of the ledger", "ops", [(rate("adjudge_ledger_verdicts_total", "outcome", API), "{{outcome}}")]),
    ("Age of what has waited longest", "s", [(f"adjudge_ledger_lag_seconds{{{API}}}", "{{instance}}")]),
    ("Spool on disk", "bytes", [(f"adjudge_ledger_spool_bytes{{{API}}}", "{{instance}}")]),
    ("Database can be written", "short", [(f"adjudge_ledger_writable{{{API}}}", "{{instance}}")]),
    ("Spool can be written", "short", [(f"adjudge_ledger_spool_writable{{{API}}}", "{{instance}}")]),
    (
        "Waiting in memory, since the spool cannot be written",
        "bytes",
        [(f"adjudge_ledger_memory_bytes{{{API}}}", "{{instance}}")],
    ),
    ("Files of refused rows kept aside", "short", [(f"adjudge_ledger_refused_files{{{API}}}", "{{instance}}")]),
    ("Restarts of the ledger's threads", "short", [(f"adjudge_ledger_thread_restarts_total{{{API}}}", "{{instance}}")]),
    (
        "Memory",
        "bytes",
        [('process_resident_memory_bytes{namespace=~"$namespace",job=~"api|judge|worker"}', "{{job}} {{instance}}")],
    ),
    (
        "Open files",
        "short",
        [('process_open_fds{namespace=~"$namespace",job=~"api|judge|worker"}', "{{job}} {{instance}}")],
    ),
]
DASHBOARDS: dict[str, tuple[str, list[Panel]]] = {
    "judging": ("Adjudge: judging", JUDGING),
    "runs": ("Adjudge: training runs", RUNS),
    "monitors": ("Adjudge: monitors, cascades and panels", MONITORS),
    "operations": ("Adjudge: operations", OPERATIONS),
    "ledger": ("Adjudge: ledger and processes", LEDGER),
}


def panel(number: int, title: str, unit: str, lines: list[tuple[str, str]]) -> dict[str, Any]:
    """A chart over time, in its place of a grid of two columns."""
    place = {"h": HEIGHT, "w": WIDTH, "x": WIDTH * (number % 2), "y": HEIGHT * (number // 2)}
    targets = [{"refId": chr(65 + at), "expr": expr, "legendFormat": legend} for at, (expr, legend) in enumerate(lines)]
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def dashboard(name: str) -> str:
    """One dashboard's JSON."""
    title, panels = DASHBOARDS[name]
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    namespace = {
        "name": "namespace", "label": "Namespace", "type": "query", "includeAll": True, "allValue": ".*", "refresh": 2,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": {"query": "label_values(adjudge_judgements_total, namespace)", "refId": "namespace"},
        "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip
    made = {
        "uid": f"adjudge-{name}",
        "title": title,
        "tags": ["adjudge"],
        "schemaVersion": 41,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [source, namespace]},
        "panels": [panel(number, *given) for number, given in enumerate(panels)],
    }
    return json.dumps(made, indent=2) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in DASHBOARDS:
        (FOLDER / f"{name}.json").write_text(dashboard(name), encoding="utf-8")
        print(f"wrote {name}.json")
