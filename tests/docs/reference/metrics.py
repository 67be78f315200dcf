"""Every metric of `/metrics`, from the places in the sources that make it: name, type, labels and meaning."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.docs.reference.markdown import prose, sentence

_SOURCES = Path(__file__).parents[3] / "judge_server/src/judge_server"
_TYPES = {
    "Counter": "counter", "counter": "counter", "CounterMetricFamily": "counter", "Gauge": "gauge",
    "GaugeMetricFamily": "gauge", "Histogram": "histogram", "seconds": "histogram",
}  # fmt: skip
"""By the name of the function that makes a metric, or of a local short form of it."""


class MetricEntry(NamedTuple):
    """A metric: the name that Prometheus sees, its type, its labels, and what it measures."""

    name: str
    type: str
    labels: tuple[str, ...]
    meaning: str


def metrics_page() -> str:
    """A section for each metric, by name."""
    lines = []
    for one in sorted(metrics()):
        labels = ", ".join(f"`{label}`" for label in one.labels)
        kind = f"Type: {one.type}. {f'Labels: {labels}.' if labels else 'No labels.'}"
        lines += [f"## {one.name}", "", prose(sentence(one.meaning)), "", kind, ""]
    return "\n".join(lines)


def metrics() -> list[MetricEntry]:
    """Return the metrics that the sources make."""
    found: list[MetricEntry] = []
    for source in sorted(_SOURCES.rglob("*.py")):
        text = source.read_text(encoding="utf-8")
        if "prometheus_client" in text or "CounterMetricFamily" in text:
            tree = ast.parse(text)
            constants = dict(_constants(tree))
            found += _called(tree, constants)
            found += _gauges_of_a_table(constants)
    return found


def _constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value


def _called(tree: ast.Module, constants: dict[str, ast.expr]) -> Iterator[MetricEntry]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or len(node.args) < 2:
            continue
        kind = _TYPES.get(node.func.id)
        if kind is None or "adjudge_" not in ast.unparse(node.args[0]):  # such as a Counter of the standard library
            continue
        labels = [key.value for key in node.keywords if key.arg == "labels"] + node.args[2:3]
        labelled = tuple(ast.literal_eval(labels[0])) if labels else ()
        name, meaning = node.args[:2]
        if isinstance(name, ast.Constant):
            yield _entry(name.value, kind, labelled, _text(meaning, constants))
        else:  # f"adjudge_run_{name}" of each item of _RUN_COUNTS
            for suffix, text in ast.literal_eval(constants["_RUN_COUNTS"]).items():
                yield _entry(f"adjudge_run_{suffix}", kind, labelled, f"{text}, by run")


def _gauges_of_a_table(constants: dict[str, ast.expr]) -> Iterator[MetricEntry]:
    table = constants.get("_LEDGER_GAUGES")
    if isinstance(table, ast.Dict):
        for key, value in zip(table.keys, table.values, strict=True):
            assert isinstance(key, ast.Constant)
            assert isinstance(value, ast.Tuple)
            yield _entry(key.value, "gauge", (), ast.literal_eval(value.elts[0]))


def _text(node: ast.expr, constants: dict[str, ast.expr]) -> str:
    if not isinstance(node, ast.JoinedStr):
        return str(ast.literal_eval(node))
    parts = []
    for part in node.values:
        inner = part.value if isinstance(part, ast.FormattedValue) else part
        parts.append(str(ast.literal_eval(constants[inner.id] if isinstance(inner, ast.Name) else inner)))
    return "".join(parts)


def _entry(name: str, kind: str, labels: tuple[str, ...], meaning: str) -> MetricEntry:
    return MetricEntry(
        re.sub(r"(_total)?$", "_total", name, count=1) if kind == "counter" else name, kind, labels, meaning
    )
