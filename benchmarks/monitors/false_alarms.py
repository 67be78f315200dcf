"""Count false alarms of monitors in simulated healthy runs: `python -m benchmarks.monitors.false_alarms`.

Every run learns: its reward, its shadow criterion and its gold reward rise together from 0.4 to 0.7, and each prompt of
a step has a difficulty of its own. Half of the responses were judged by both judges of a cascade, which disagree on a
fifth of them. The monitors look after every fifth step of the whole run, so a run has many chances of a false alarm.
With `--correlation`, the noise of a step carries over to the next one, as in training on few prompts.
"""

import argparse
import random
from collections import Counter

from benchmarks.report import publish
from judge_server.monitoring.monitors import FIRST_STEPS, HISTORY_STEPS, MONITORS, report, wilson
from rubric_store.ledger.rows import MonitoredRun, SignalSums, StepSums
from trainer_client.wire.monitors import MonitorThresholds

GROUPS, GROUP_SIZE, GOLD_PER_STEP = 16, 8, 6


def simulate(steps: int, seed: int, correlation: float) -> MonitoredRun:
    """Draw a healthy run: group difficulties, verdicts, lengths, and a gold judge that agrees nine times in ten."""
    chance, of_cascade = random.Random(seed), random.Random(f"cascade {seed}")
    disputes = 0.0
    sums, signals, gold = [], [], []
    noise = {"reward": 0.0, "shadow": 0.0, "length": 0.0, "overlap": 0.0}
    for step in range(steps):
        for name in noise:
            noise[name] = correlation * noise[name] + chance.gauss(0, 1)
        skill = 0.4 + 0.3 * step / steps
        disputes = correlation * disputes + of_cascade.gauss(0, 1)
        asked = [float(of_cascade.random() < 0.5) for _ in range(GROUPS * GROUP_SIZE)]
        members = [(one, one * (of_cascade.random() < 0.2 + 0.02 * disputes)) for one in asked]
        signals.append(_sums("members", "", step, members, 0))
        rewards, shadows, lengths, overlaps, pairs = [], [], [], [], []
        unscored = 0
        for _ in range(GROUPS):
            difficulty = chance.gauss(0, 0.15)
            for _ in range(GROUP_SIZE):
                if chance.random() < 0.01:
                    unscored += 1
                    continue
                reward = float(chance.random() < skill + difficulty + 0.02 * noise["reward"])
                rewards.append(reward)
                shadows.append(float(chance.random() < skill + difficulty + 0.02 * noise["shadow"]))
                lengths.append(chance.gauss(200 + 3 * noise["length"], 50))
                overlaps.append(float(chance.random() < 0.1 + 0.02 * noise["overlap"]))
        for reward in chance.sample(rewards, GOLD_PER_STEP):
            pairs.append((reward, reward if chance.random() < 0.9 else 1 - reward))
        count = len(rewards)
        sums.append(StepSums(step, GROUPS * GROUP_SIZE, unscored, count, sum(rewards), sum(rewards)))
        for signal, name, values in (
            ("shadow", "s", shadows),
            ("length", "tokens", lengths),
            ("overlap", "", overlaps),
        ):
            x = overlaps if signal == "overlap" else rewards
            signals.append(_sums(signal, name, step, list(zip(x, values, strict=True)), count - GROUPS))
        met = sum(chance.random() < 0.3 for _ in range(GROUPS))
        signals.append(SignalSums("criterion", "c", step, GROUPS, met, 0, 0, 0, 0, 0, 0, 0, 0))
        gold += [_sums("gold", name, step, pairs, 0) for name in ("", "c")]
    return MonitoredRun(sums, signals, gold, ())


def _sums(signal: str, name: str, step: int, pairs: list[tuple[float, float]], within: int) -> SignalSums:
    x, y = sum(a for a, _ in pairs), sum(b for _, b in pairs)
    xx, yy, xy = sum(a * a for a, _ in pairs), sum(b * b for _, b in pairs), sum(a * b for a, b in pairs)
    n = len(pairs)
    deviations = (xx - x * x / n, yy - y * y / n, xy - x * y / n)
    return SignalSums(signal, name, step, n, x, y, xx, yy, xy, within, *deviations)


def until(run: MonitoredRun, step: int) -> MonitoredRun:
    """Return what the monitors would have read of a run after a step."""
    known = [one.step for one in run.steps if one.step <= step]
    chosen = {*known[:FIRST_STEPS], *known[-HISTORY_STEPS:]}
    return MonitoredRun(
        [one for one in run.steps if one.step in chosen],
        [one for one in run.signals if one.step in chosen],
        [one for one in run.gold if one.step in chosen],
        (),
    )


def main() -> None:
    """Simulate, count and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=5, help="look after every so many steps (5)")
    parser.add_argument("--correlation", type=float, default=0.0, help="of the noise of consecutive steps (0)")
    given = parser.parse_args()
    alarms: Counter[str] = Counter()
    for seed in range(given.runs):
        run = simulate(given.steps, seed, given.correlation)
        seen: set[str] = set()
        for step in range(given.every - 1, given.steps, given.every):
            seen |= {one.monitor for one in report("r", until(run, step), MonitorThresholds()).findings}
        alarms.update(seen)
    looks = given.runs * (given.steps // given.every)
    rows = []
    for name, (signal, _) in MONITORS.items():
        if signal != "control":
            share = wilson(alarms[name], given.runs, 1.96)
            interval = f"{share.low:.1%} to {share.high:.1%}"
            rows.append({"monitor": name, "runs with a false alarm": alarms[name], "95% interval": interval})
    title = f"{given.runs} healthy runs of {given.steps} steps, {looks:,} looks, correlation {given.correlation:g}"
    publish("false_alarms", title, rows)


if __name__ == "__main__":
    main()
