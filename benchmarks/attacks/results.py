"""Evaluate an attack: whether the service kept its promises, and the latency of honest requests, calm and attacked."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.attacks.routes import routes
from benchmarks.attacks.scenario import Attacked, Window
from benchmarks.load import p99
from benchmarks.soak import invariants
from benchmarks.soak.expected_answers import compare_answers
from benchmarks.soak.figures import TIMES_CALM, request_timings
from benchmarks.soak.runner import Lines

_DAMAGE = ("lost", "refused", "waiting", "spool_bytes", "restarts")
"""Fields of the ledger's state that must be 0 at the end."""


class Promises(NamedTuple):
    """Broken promises as text (`wrong`), and the figures behind them.

    `honest` is the number of honest requests that were answered, `unanswered` counts those that the client gave up on,
    by error, and `failures` counts their failed verdicts by kind. Callers see both, so neither makes a reward wrong.
    """

    wrong: list[str]
    honest: int
    unanswered: Counter[str]
    failures: Counter[str]
    ledger: dict[str, int]


class Latencies(NamedTuple):
    """Durations in seconds of honest requests, and of the slowest answer to `/healthz`, in calm or attacked windows.

    `others` is the mean number of processors that were busy with other work on the machine.
    """

    requests: int
    p50: float
    p99: float
    longest: float
    largest_lag: float
    others: float


def promises(found: Attacked) -> Promises:
    """Compare every honest reward with the expected one, the ledger with the answers, and look for failures."""
    answered = [line for line in found.lines if "error" not in line]
    comparison = compare_answers(answered, found.known(line["subject"] for line in answered))
    ledger = invariants.ledger(found.database, answered, ())
    wrong = comparison.violations + ledger.violations
    wrong += [f"the ledger's {name} is {found.ledger[name]}" for name in _DAMAGE if found.ledger.get(name)]
    if found.ended_by_itself:
        wrong.append("the service's process ended")
    if not answered:
        wrong.append("no honest request was answered")
    wrong += [f"{line['attack']}: {text}" for line in found.attacks for text in line["examples"] if text[:3] == "500"]
    wrong += [f"{line['attack']} could not attack: {line['problem']}" for line in found.attacks if line["problem"]]
    unanswered = Counter(line["error"].partition(":")[0] for line in found.lines if "error" in line)
    return Promises(wrong, len(answered), unanswered, comparison.failures, ledger.figures)


def times(found: Attacked, windows: Sequence[Window]) -> Latencies:
    """Compute the times of honest requests that began within the windows."""

    def inside(at: float) -> bool:
        return any(begin <= at < end for begin, end in windows)

    durations = [seconds for began, seconds in request_timings(found.lines) if inside(began)]
    lags = [one.took for one in found.probed if inside(one.at)]
    return Latencies(
        len(durations),
        statistics.median(durations) if durations else math.nan,
        p99(durations),
        max(durations, default=math.nan),
        max(lags, default=math.nan),
        statistics.mean([busy for at, busy in found.others if inside(at)] or [math.nan]),
    )


def rows_of_times(found: Attacked) -> list[dict[str, Any]]:
    """Return a row for each kind of window, and one for the attacked times divided by each of the others."""
    calm, loaded, attacked = (times(found, one) for one in (found.calm, found.loaded, found.attacked))
    rows: list[dict[str, Any]] = [
        {
            "windows": name,
            "honest requests": str(measured.requests),
            "p50 s": measured.p50,
            "p99 s": measured.p99,
            "longest s": measured.longest,
            "largest lag of /healthz s": measured.largest_lag,
            "processors busy with other work": measured.others,
        }
        for name, measured in (("calm", calm), ("calm, beside burners", loaded), ("attacked", attacked))
    ]
    for name, divisor in (("times calm", calm), ("times calm, beside burners", loaded)):
        ratios = [b / a for a, b in zip(divisor[1:], attacked[1:], strict=True)]
        rows.append(dict(zip(rows[0], (name, "", *ratios), strict=True)))
    return rows


def ratios(found: Attacked) -> tuple[float, float]:
    """Return the attacked 99th percentile divided by the calm one, and by the one beside burners."""
    attacked = times(found, found.attacked).p99
    return attacked / times(found, found.calm).p99, attacked / times(found, found.loaded).p99


def meets_aim(found: Attacked) -> bool:
    """Whether honest requests take less than `TIMES_CALM` times as long as beside burners."""
    return ratios(found)[1] < TIMES_CALM


def rows_by_attack(found: Attacked) -> list[dict[str, Any]]:
    """Return a row per kind of attack: its answers by class, and honest times while it and possibly others ran."""
    rows = []
    for kind in sorted({line["attack"] for line in found.attacks}):
        own = [line for line in found.attacks if line["attack"] == kind]
        windows = [(line["began"], line["ended"]) for line in own]
        measured = times(found, windows)
        rows.append(
            {"attack": kind, "times": len(own), "rounds": sum(line["rounds"] for line in own)}
            | by_class(own)
            | {"honest p99 s": measured.p99, "largest lag s": measured.largest_lag}
        )
    return rows


def by_class(lines: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Count answers by class of status. Requests that were aborted, timed out or cancelled count as `no answer`."""
    answers = _answers(lines)
    statuses = {name: number for name, number in answers.items() if name.isdecimal()}
    classes = {f"{n}xx": sum(v for name, v in statuses.items() if name[0] == str(n)) for n in (2, 4)}
    classes |= {name: statuses.get(name, 0) for name in ("500", "503")}
    others = sum(v for name, v in statuses.items() if name[0] == "5" and name not in ("500", "503"))
    rest = answers["no answer"] + answers["given up"]
    return classes | {"other 5xx": others, "no answer": rest}


def routes_not_attacked(lines: Lines) -> list[str]:
    """Return the routes of the application that no attack asked for, as `GET /v1/runs`."""
    attacked = {route for line in lines for route in line["routes"]}
    return [name for route in routes() if (name := " ".join(route)) not in attacked]


def totals(lines: Lines) -> str:
    """Summarise all answers to attackers by status, as text."""
    return ", ".join(f"{name} {number:,}" for name, number in sorted(_answers(lines).items()))


def _answers(lines: Sequence[Mapping[str, Any]]) -> Counter[str]:
    return sum([Counter(line["answers"]) for line in lines], Counter[str]())
