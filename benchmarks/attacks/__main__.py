"""Run two honest training runs on a service that attackers have keys for, for half an hour: `make soak-attacks`.

The exit status is 1 if an honest reward was wrong, a row of the ledger is missing or duplicated, the service answered
500, or its process ended. The latency of honest requests relative to the calm windows is reported too. It affects the
exit status only with `--assert-latency`, since it also depends on other work on the machine.
"""

import argparse
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.attacks.attacker import ATTACKS
from benchmarks.attacks.results import (
    meets_aim,
    promises,
    ratios,
    routes_not_attacked,
    rows_by_attack,
    rows_of_times,
    totals,
)
from benchmarks.attacks.scenario import Attacked, Plan, attack
from benchmarks.report import progress_log, publish
from benchmarks.soak.figures import TIMES_CALM
from benchmarks.soak.process_monitor import growth_rows

CYCLE_S, CALM_SHARE = 300.0, 0.2


def windows(minutes: float) -> list[tuple[float, float]]:
    """Divide the time into cycles of about five minutes; return the calm (a fifth) and attacked seconds of each."""
    cycles = max(1, round(minutes * 60 / CYCLE_S))
    cycle_s = minutes * 60 / cycles
    return [(CALM_SHARE * cycle_s, (1 - CALM_SHARE) * cycle_s)] * cycles


def report(found: Attacked, plan: Plan, minutes: float) -> list[str]:
    """Print the tables and return the violations as text."""
    outcome = promises(found)
    hosts = growth_rows(found.looks)
    if hosts:
        publish("attacks-memory", "Memory and open files under attack", hosts)
    publish("attacks-by-kind", "Attacks, their answers, and honest requests meanwhile", rows_by_attack(found))
    calm_ratio, loaded_ratio = ratios(found)
    missed = routes_not_attacked(found.attacks)
    notes = [
        f"routes that no attack asked for: {len(missed)} {', '.join(missed)}",
        f"answers to attackers: {totals(found.attacks)}",
        f"p99 attacked / calm: {calm_ratio:.2f}; / calm beside burners: {loaded_ratio:.2f}; the target is below "
        f"{TIMES_CALM:g}; the burners used {sum(found.burned) / len(found.burned):.2f} processors",
        f"honest requests answered {outcome.honest:,}; given up {dict(outcome.unanswered)}; failed verdicts "
        f"{dict(outcome.failures)}",
        f"ledger: {outcome.ledger}; state {found.ledger}",
        f"probes of /healthz {len(found.probed):,}, failed "
        f"{sum(one.problem is not None for one in found.probed)}; tracebacks in the log {found.tracebacks}",
        *([] if found.small_disk else ["a tmpfs could not be mounted, so the spool's disk was not filled"]),
        f"violations: {len(outcome.wrong)}",
        *outcome.wrong[:20],
    ]
    publish("attacks", f"{minutes:g} minutes, seed {plan.seed}", rows_of_times(found), notes)
    return outcome.wrong


def main() -> None:
    """Run the attacks from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="total calm and attacked minutes")
    parser.add_argument("--slot", type=float, default=10.0, help="duration of one attack in seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=list(ATTACKS), default=list(ATTACKS), metavar="ATTACK")
    parser.add_argument("--keep", type=Path, help="keep data and logs in this folder")
    parser.add_argument("--assert-latency", action="store_true", help="fail if the p99 misses its target")
    given = parser.parse_args()
    say = progress_log(Console(stderr=True, width=160))
    plan = Plan(windows=windows(given.minutes), slot_s=given.slot, seed=given.seed, kinds=given.only)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with attack(plan, folder, say) as found:
            failed = bool(report(found, plan, given.minutes)) or (given.assert_latency and not meets_aim(found))
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
