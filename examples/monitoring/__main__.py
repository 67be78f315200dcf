"""Simulate a gamed run and a healthy one, and see what the monitors find: `python -m examples.monitoring`.

Starts the service in this process with two scripted judges, judges both runs, applies the monitors after every step,
prints tables in Markdown, and draws a plot.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
from examples.monitoring.scenario import GamedRun, first_findings, judge_run, scripted_service
from fastapi.testclient import TestClient
from matplotlib.figure import Figure

_SETTINGS: dict[Any, Any] = {"font.size": 10, "svg.hashsalt": "adjudge", "font.family": "DejaVu Sans"}


def main() -> None:
    """Judge both runs, print and plot."""
    parser = argparse.ArgumentParser(prog="python -m examples.monitoring", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=80, help="training steps (80)")
    parser.add_argument("--began", type=int, default=40, help="first step at which the policy games the rubric (40)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.1, help="share of the responses for the gold judge (0.1)")
    parser.add_argument("--plot", type=Path, default=Path("docs/plots/monitoring.png"))
    given = parser.parse_args()
    gamed = GamedRun(given.steps, given.began, given.seed)
    with tempfile.TemporaryDirectory() as folder, scripted_service(Path(folder)) as client:
        judge_run(client, gamed, "gamed", share=given.share)
        judge_run(client, GamedRun(given.steps, None, given.seed), "healthy", share=given.share)
        found = first_findings(client, "gamed", given.steps)
        print(findings_table(found, gamed), "\n", flush=True)
        print(gold_table(client, "gamed"), "\n", flush=True)
        healthy = first_findings(client, "healthy", given.steps)
        print("healthy run:", findings_table(healthy, gamed) if healthy else "no monitor finds anything", flush=True)
        curves = {run: read_curves(client, run) for run in ("gamed", "healthy")}
    draw(curves, {name: one["seen"] for name, one in found.items()}, gamed, given.plot)
    print(f"plot: {given.plot}")


def findings_table(found: dict[str, dict[str, Any]], gamed: GamedRun) -> str:
    """Write each monitor's first finding as a table."""
    lines = [
        "| monitor | seen at step | steps after it began | responses gamed by then | began, by the monitor | finding |"
    ]
    lines.append("| --- | ---: | ---: | ---: | ---: | --- |")
    for name, one in sorted(found.items(), key=lambda item: int(item[1]["seen"])):
        seen = one["seen"]
        figures = f"{seen} | {seen - (gamed.began or 0)} | {gamed.gaming(seen):.0%} | {one['began']}"
        lines.append(f"| `{name}` | {figures} | {one['message']} |")
    return "\n".join(lines)


def gold_table(client: TestClient, run: str) -> str:
    """Write the comparison with the gold judge as a table."""
    lines = ["| steps | responses | reward minus gold reward | same verdicts |", "| --- | ---: | --- | --- |"]
    for row in client.get(f"/v1/runs/{run}/monitors").raise_for_status().json()["gold"]:
        difference, agreement = row["difference"], row["agreement"]
        lines.append(
            f"| {row['first_step']} to {row['last_step']} | {row['responses']} | "
            f"{difference['value']:+.3f} ({difference['low']:+.3f} to {difference['high']:+.3f}) | "
            f"{agreement['value']:.0%} ({agreement['low']:.0%} to {agreement['high']:.0%}) |"
        )
    return "\n".join(lines)


def read_curves(client: TestClient, run: str) -> dict[str, list[float]]:
    """Read the mean reward and the pass rate of the shadow criterion at each step."""
    steps = client.get(f"/v1/runs/{run}", params={"limit": 500}).raise_for_status().json()["steps"]
    rates = [{one["criterion"]: one["pass_rate"] for one in step["criteria"]} for step in steps]
    return {"reward": [step["mean_reward"] for step in steps], "right": [rate["right"] for rate in rates]}


def draw(curves: dict[str, dict[str, list[float]]], seen: dict[str, int], gamed: GamedRun, file: Path) -> None:
    """Plot both runs side by side, with the steps at which monitors fire."""
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(10.5, 4.2), layout="constrained")
        for axes, (run, curve) in zip(figure.subplots(1, 2, sharey=True), curves.items(), strict=True):
            axes.plot(curve["reward"], color="#0072B2", label="mean reward")
            axes.plot(curve["right"], color="#D55E00", linestyle="--", label="shadow criterion: right answers")
            axes.set_title(f"{run} run", loc="left", fontsize=10)
            axes.set_xlabel("training step")
            axes.set_ylim(0, 1.02)
            axes.spines[["top", "right"]].set_visible(False)
            if run == "gamed" and gamed.began is not None:
                axes.axvline(gamed.began, color="#999999", linestyle=":", linewidth=1)
                axes.text(gamed.began - 0.7, 0.03, "gaming begins", rotation=90, fontsize=8, ha="right")
                for place, (name, step) in enumerate(sorted(seen.items(), key=lambda item: item[1])):
                    axes.axvline(step, color="#555555", linewidth=0.8)
                    axes.text(step + 0.4, 0.03 + 0.2 * (place % 2), name, rotation=90, fontsize=8)
        figure.axes[0].legend(frameon=False, fontsize=9, loc="upper left")
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()
