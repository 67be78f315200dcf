"""The tables of `adjudge top`: figures in, something to print out."""

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.top_figures import MetricsSnapshot

_RUNS_SHOWN = 20
_OUTCOMES = ("judged", "cached", "joined", "checked", "failed")


def view(now: MetricsSnapshot, delta: MetricsSnapshot, seconds: float | None) -> Group:
    """The service and its runs. `counted` is what was counted in so many seconds; None says since the service began."""
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
        f"{now.sum('adjudge_calls_waiting'):,.0f} calls wait, {now.sum('adjudge_calls_at_engine'):,.0f} at the engine "
        f"in at most {now.sum('adjudge_batches_limit'):,.0f} batches; refused: "
        f"{_rate(delta.sum('adjudge_requests_shed_total'), seconds)} requests",
    )
    for name, shown in (("queue", "waited"), ("engine", "at the engine"), ("cache", "cache")):
        half, most = (delta.quantile(f"adjudge_{name}_seconds", share) for share in (0.5, 0.99))
        if half is not None and most is not None:
            table.add_row(shown, f"p50 {_seconds(half)}, p99 {_seconds(most)}")
    hits, misses = (delta.sum("adjudge_cache_lookups_total", result=result) for result in ("hit", "miss"))
    table.add_row("cache hits", _share(hits, hits + misses))
    computed = delta.sum("adjudge_prompt_tokens_total", source="computed")
    reused = delta.sum("adjudge_prompt_tokens_total", source="reused")
    table.add_row(
        "prompt tokens", f"{_rate(computed, seconds)} computed, {_share(reused, computed + reused)} of all reused"
    )
    memory = now.sum("process_resident_memory_bytes")
    cpu = delta.sum("process_cpu_seconds_total")
    busy = f", {cpu / seconds:.0%} of a core" if seconds else f", {cpu:,.0f} s of CPU"
    table.add_row("process", f"{memory / 2**20:,.0f} MB{busy}" if memory else "–")
    return table


def _runs(now: MetricsSnapshot, delta: MetricsSnapshot, seconds: float | None) -> Table:
    per = "/s" if seconds else ""
    table = Table("run")
    for title in ("share", "calls on their way", f"judgements{per}", f"prompt tokens{per}", "reused"):
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
            _share(reused, computed + reused),
        )
    return table


def _number(count: float, seconds: float | None) -> str:
    value = count / seconds if seconds else count
    return f"{value:,.1f}" if seconds and value < 10 else f"{value:,.0f}"


def _rate(count: float, seconds: float | None) -> str:
    return _number(count, seconds) + ("/s" if seconds else "")


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "–"


def _seconds(value: float) -> str:
    return f"{value * 1000:,.0f} ms" if value < 1 else f"{value:,.1f} s"
