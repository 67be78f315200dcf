"""`adjudge top`: a service's metrics in the terminal, live."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.output import exit_with_error, format_seconds, format_share, out

if TYPE_CHECKING:
    import httpx2

Labels = tuple[tuple[str, str], ...]

_RUNS_SHOWN = 20
_OUTCOMES = ("judged", "cached", "joined", "checked", "failed")
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """Every sample of a page of metrics, by name and labels."""

    samples: dict[str, dict[Labels, float]] = field(default_factory=dict)

    @classmethod
    def read(cls, page: str) -> "MetricsSnapshot":
        """Parse a page of metrics; raises `ValueError` for anything else."""
        from prometheus_client.parser import text_string_to_metric_families

        samples: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                samples.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
        return cls(samples)

    def delta_since(self, before: "MetricsSnapshot") -> "MetricsSnapshot":
        """The increase since an earlier snapshot; a series that is new or was reset counts in full."""
        changed = {}
        for name, series in self.samples.items():
            old = before.samples.get(name, {})
            changed[name] = {
                labels: value - old[labels] if 0 <= old.get(labels, -1.0) <= value else value
                for labels, value in series.items()
            }
        return MetricsSnapshot(changed)

    def sum(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that have these labels."""
        wanted = labels.items()
        return sum(value for found, value in self.samples.get(name, {}).items() if wanted <= dict(found).items())

    def by(self, name: str, label: str) -> Iterator[tuple[str, float]]:
        """A metric's values by one label."""
        for found, value in self.samples.get(name, {}).items():
            yield dict(found).get(label, ""), value

    def quantile(self, name: str, share: float) -> float | None:
        """A quantile of a histogram over all labels, interpolated within its bucket; None if it is empty."""
        buckets: dict[float, float] = {}
        for edge, count in self.by(f"{name}_bucket", "le"):
            buckets[float(edge)] = buckets.get(float(edge), 0.0) + count
        bounds = sorted(buckets)
        if not bounds or not buckets[bounds[-1]]:
            return None
        wanted, below, lowest = share * buckets[bounds[-1]], 0.0, 0.0
        for bound in bounds:
            if buckets[bound] >= wanted:
                if bound == float("inf"):
                    return lowest
                inside = (wanted - below) / (buckets[bound] - below) if buckets[bound] > below else 0.0
                return lowest + inside * (bound - lowest)
            below, lowest = buckets[bound], bound
        return lowest


def view(now: MetricsSnapshot, delta: MetricsSnapshot, seconds: float | None) -> Group:
    """Tables of the service and its runs; `delta` is the increase in `seconds`, since the start if None."""
    return Group(_service(now, delta, seconds), _runs(now, delta, seconds))


def _service(now: MetricsSnapshot, delta: MetricsSnapshot, seconds: float | None) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(justify="left")

    outcomes = [(name, delta.sum("adjudge_judgements_total", outcome=name)) for name in _OUTCOMES]
    table.add_row("judgements", _rate(sum(n for _, n in outcomes), seconds))
    table.add_row("", ", ".join(f"{name} {_rate(n, seconds)}" for name, n in outcomes))
    failures: dict[str, float] = {}
    for kind, number in delta.by("adjudge_judgements_total", "failure"):
        if kind and number:
            failures[kind] = failures.get(kind, 0.0) + number
    if failures:
        table.add_row("failures", ", ".join(f"{kind} {_rate(number, seconds)}" for kind, number in failures.items()))
    table.add_row(
        "queue",
        f"{now.sum('adjudge_calls_waiting'):,.0f} calls waiting, "
        f"{now.sum('adjudge_calls_at_engine'):,.0f} at the engine in at most "
        f"{now.sum('adjudge_batches_limit'):,.0f} batches; refused: "
        f"{_rate(delta.sum('adjudge_requests_shed_total'), seconds)} requests",
    )
    for name, shown in (("queue", "waited"), ("engine", "at the engine"), ("cache", "cache")):
        half, most = (delta.quantile(f"adjudge_{name}_seconds", share) for share in (0.5, 0.99))
        if half is not None and most is not None:
            table.add_row(shown, f"p50 {format_seconds(half)}, p99 {format_seconds(most)}")
    hits, misses = (delta.sum("adjudge_cache_lookups_total", result=result) for result in ("hit", "miss"))
    table.add_row("cache hits", format_share(hits, hits + misses))
    computed = delta.sum("adjudge_prompt_tokens_total", source="computed")
    reused = delta.sum("adjudge_prompt_tokens_total", source="reused")
    table.add_row(
        "prompt tokens", f"{_rate(computed, seconds)} computed, {format_share(reused, computed + reused)} of all reused"
    )
    memory = now.sum("process_resident_memory_bytes")
    cpu = delta.sum("process_cpu_seconds_total")
    busy = f", {cpu / seconds:.0%} of a core" if seconds else f", {cpu:,.0f} s of CPU"
    table.add_row("process", f"{memory / 2**20:,.0f} MB{busy}" if memory else "–")
    return table


def _runs(now: MetricsSnapshot, delta: MetricsSnapshot, seconds: float | None) -> Table:
    per = "/s" if seconds else ""
    table = Table("run")
    for title in ("share", "calls in flight", f"judgements{per}", f"prompt tokens{per}", "reused"):
        table.add_column(title, justify="right")
    shares = dict(now.by("adjudge_run_share", "run"))
    waiting = dict(now.by("adjudge_run_calls", "run"))
    listed = sorted(shares | waiting, key=lambda run: (-shares.get(run, 0.0), -waiting.get(run, 0.0), run))
    for run in listed[:_RUNS_SHOWN]:
        computed = delta.sum("adjudge_run_prompt_tokens_computed_total", run=run)
        reused = delta.sum("adjudge_run_prompt_tokens_reused_total", run=run)
        table.add_row(
            escape(run),
            f"{shares.get(run, 0.0):.0%}",
            f"{waiting.get(run, 0.0):,.0f}",
            _number(delta.sum("adjudge_run_judgements_total", run=run), seconds),
            _number(computed + reused, seconds),
            format_share(reused, computed + reused),
        )
    return table


def _number(count: float, seconds: float | None) -> str:
    value = count / seconds if seconds else count
    return f"{value:,.1f}" if seconds and value < 10 else f"{value:,.0f}"


def _rate(count: float, seconds: float | None) -> str:
    return _number(count, seconds) + ("/s" if seconds else "")


def top(
    url: Annotated[str, typer.Argument(help="Address of the service.", envvar="ADJUDGE_URL")] = "http://127.0.0.1:8000",
    once: Annotated[bool, typer.Option("--once", help="Show the totals since the service started, and exit.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between updates.")] = 2.0,
) -> None:
    """Show a service's queue, rates and runs until Ctrl-C. Rates are averages over the update interval.

    If the service's metrics need a key, set it as ADJUDGE_API_KEY.
    """
    import httpx2

    from trainer_client.client.calls import socks_support

    key = os.environ.get("ADJUDGE_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with socks_support():
        made = httpx2.Client(base_url=url, timeout=_TIMEOUT_S, headers=headers)
    with made as client:
        figures = _fetch_or_exit(client, url)
        if once:
            out.print(view(figures, figures, None))
            return
        with Live(view(figures, figures, None), console=out, auto_refresh=False) as live:
            try:
                _follow(client, url, live, figures, interval)
            except KeyboardInterrupt:
                return


def _follow(client: "httpx2.Client", url: str, live: Live, before: MetricsSnapshot, interval: float) -> None:
    import httpx2

    seen = time.monotonic()
    while True:
        time.sleep(interval)
        try:
            now, at = _fetch(client), time.monotonic()
        except (httpx2.HTTPError, ValueError) as error:
            reason = error or type(error).__name__
            live.update(Group(f"{url} does not answer ({reason}); retrying"), refresh=True)
            continue
        live.update(view(now, now.delta_since(before), at - seen), refresh=True)
        before, seen = now, at


def _fetch_or_exit(client: "httpx2.Client", url: str) -> MetricsSnapshot:
    import httpx2

    try:
        return _fetch(client)
    except (httpx2.HTTPError, ValueError) as error:
        reason = error or type(error).__name__
        exit_with_error(f"{url}/metrics cannot be read: {reason}. Give the service's address: adjudge top URL")


def _fetch(client: "httpx2.Client") -> MetricsSnapshot:
    answer = client.get("/metrics")
    answer.raise_for_status()
    return MetricsSnapshot.read(answer.text)
