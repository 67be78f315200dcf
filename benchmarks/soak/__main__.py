"""Run two training runs and bulk operations on a cluster of plain processes, with a fault at regular intervals.

The cluster has two apis, two judges with a scripted engine, two workers, one PostgreSQL and one Redis, with a link on
every connection between them; trainers reach the apis at one address. Afterwards, every answer is compared with that of
an undisturbed service, the ledger with the answers, operations with their inputs, and memory and open files at the end
with those at the start.
"""

import argparse
import tempfile
from collections import Counter
from pathlib import Path

from rich.console import Console

from benchmarks.load import p99
from benchmarks.report import progress_log, publish
from benchmarks.soak import invariants
from benchmarks.soak.expected_answers import compare_answers, compute_expected
from benchmarks.soak.faults import FAULTS, judges_gone
from benchmarks.soak.figures import TIMES_CALM, between, by_kind, request_timings
from benchmarks.soak.process_monitor import growth_rows
from benchmarks.soak.runner import Plan, SoakResult, soak
from benchmarks.soak.workload import AT_A_JUDGE


def checked(result: SoakResult, say: Console) -> tuple[list[str], list[str]]:
    """Check the results; return the violations, and notes with the figures, as text."""
    answered = [line for line in result.lines if "error" not in line]
    errors = Counter(line["error"].partition(":")[0] for line in result.lines if "error" in line)
    subjects = {line["subject"] for line in answered} | {s for one in result.operations for s in one.submitted.subjects}
    say.print(f"asking an undisturbed service about {len(subjects):,} groups")
    expected = compute_expected(subjects)
    comparison = compare_answers(answered, expected)
    ledger = invariants.ledger(result.database, answered, result.kills)
    operations = invariants.operations(
        result.database, result.operations, expected, lost_calls=AT_A_JUDGE * judges_gone(result.faults)
    )
    violations = comparison.violations + ledger.violations + operations.violations + result.unwritten
    violations += [f"group {line['subject']}: {line['error']}" for line in result.lines if "error" in line]
    if operations.figures["operations"] == 0:
        violations.append("no operation was accepted")
    notes = [
        f"requests answered {len(answered):,}; errors after all retries {dict(errors)}; "
        f"failed verdicts {dict(comparison.failures)}",
        f"ledger: {ledger.figures}",
        f"operations: {operations.figures}; submissions refused after all retries: {len(result.refused)}",
    ]
    return violations, notes


def main() -> None:
    """Run the soak from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="minutes with faults")
    parser.add_argument("--every", type=float, default=30.0, help="seconds from the start of one fault to the next")
    parser.add_argument("--hold", type=float, default=6.0, help="duration of a fault in seconds")
    parser.add_argument("--calm", type=float, default=60.0, help="seconds without faults before the first one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=list(FAULTS), default=list(FAULTS), metavar="FAULT")
    parser.add_argument("--keep", type=Path, help="keep data and logs in this folder")
    given = parser.parse_args()
    console = Console(stderr=True, width=160)
    say = progress_log(console)
    plan = Plan(
        faults=round(given.minutes * 60 / given.every),
        rest_s=given.every / 2,
        interval_s=given.every,
        hold_s=given.hold,
        calm_s=given.calm,
        seed=given.seed,
        kinds=given.only,
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with soak(plan, folder, say) as result:
            violations, notes = checked(result, console)
    requests = request_timings(result.lines)
    calm = p99(between(requests, *result.calm))
    rows = by_kind(requests, result.faults, result.end, calm)
    soon, none_slow = (sum(row[name] for row in rows) for name in ("p99 as before then", "none slow after 10 s"))
    publish("soak-memory", "Memory and open files under faults", growth_rows(result.samples))
    publish(
        "soak",
        f"{given.minutes:g} minutes with a fault every {given.every:g} s, at {plan.share:.0%} of "
        f"{result.capacity:,.0f} verdicts/s",
        rows,
        [
            f"p99 in the calm phase: {calm:.2f} s; from 10 s after a fault, the p99 is below {TIMES_CALM:g} times that "
            f"for {soon} of {len(result.faults)} faults, and no request is slower for {none_slow}",
            *notes,
            f"violations: {len(violations)}",
            *violations[:20],
        ],
    )
    raise SystemExit(bool(violations))


if __name__ == "__main__":
    main()
