"""Train all runs against their own service: `python -m examples.learning`.

Trains starting policies on demonstrations, starts `adjudge serve`, trains each run of `runs.RUNS` with three seeds, two
runs at a time, and writes a table and a plot for each of `runs.EXPERIMENTS`. Existing results are reused; `--fresh`
trains them again.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from benchmarks.report import commit, machine
from benchmarks.server import running, running_service
from examples.learning.plot import draw, smoothed
from examples.learning.policy import CACHE, load_or_train_policy
from examples.learning.runs import EXPERIMENTS, RUNS, Experiment
from tests.fixtures.ports import unused_port
from tqdm import tqdm

FILES = {
    "plain": "learning",
    "hard": "learning-hard",
    "unanswered": "learning-unanswered",
    "twelve": "learning-contrast",
    "asked": "learning-saturated",
}
_LAST = 10


def train_all(runs: Sequence[str], seeds: Sequence[int], steps: int | None, *, fresh: bool, jobs: int) -> None:
    """Train the runs without a result, `jobs` at a time."""
    todo = [(run, seed) for seed in seeds for run in runs if fresh or not result(run, seed, steps).exists()]
    if not todo:
        return
    for run, _ in todo:
        load_or_train_policy(EXPERIMENTS[RUNS[run].experiment].start)
    port = unused_port()
    judge, judge_url = [sys.executable, "-m", "examples.learning.judge", str(port)], f"127.0.0.1:{port}/v1"
    with (
        running(judge, dict(os.environ), f"http://{judge_url}/models"),
        running_service(f"openai+http://{judge_url}?model=exact") as (url, _),
        tqdm(total=len(todo), unit="run", desc="training") as bar,
    ):

        def train(job: tuple[str, int]) -> None:
            run, seed = job
            experiment = EXPERIMENTS[RUNS[run].experiment]
            command = [sys.executable, "-m", "examples.learning.train", run, str(seed), "--url", url]
            command += ["--start", str(CACHE / experiment.start.name), "--steps", str(steps or experiment.steps)]
            command += ["--out", str(result(run, seed, steps))]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            if done.returncode:
                raise SystemExit(f"{run}, seed {seed}: {done.stderr[-2000:]}")
            bar.update()

        with ThreadPoolExecutor(jobs) as pool:
            for _ in pool.map(train, todo):
                pass


def result(run: str, seed: int, steps: int | None) -> Path:
    """Return the file with the result of a run."""
    experiment = EXPERIMENTS[RUNS[run].experiment]
    return CACHE / "runs" / experiment.start.name / f"{run}-{seed}-{steps or experiment.steps}.json"


def curves(
    runs: Sequence[str], seeds: Sequence[int], steps: int | None, measure: str
) -> Mapping[str, list[list[float]]]:
    """Return the curves of one measure, one per seed, by the label of the run."""
    return {
        RUNS[run].label: [
            [step[measure] for step in json.loads(result(run, seed, steps).read_text(encoding="utf-8"))]
            for seed in seeds
        ]
        for run in runs
    }


def table(experiment: Experiment, runs: Sequence[str], seeds: Sequence[int], steps: int | None) -> str:
    """Return a Markdown table of each run's last steps, with mean and range over the seeds."""
    lines = ["| run | " + " | ".join(title.lower() for title in experiment.panels.values()) + " |"]
    lines.append("| --- |" + " ---: |" * len(experiment.panels))
    for run in runs:
        cells = []
        for measure in experiment.panels:
            (run_curves,) = curves([run], seeds, steps, measure).values()
            ends = [float(np.mean(curve[-_LAST:])) for curve in run_curves]
            cells.append(f"{np.mean(ends):.3f} ({min(ends):.3f}..{max(ends):.3f})")
        lines.append(f"| {RUNS[run].label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plateaus(runs: Sequence[str], seeds: Sequence[int], steps: int | None, measure: str) -> str:
    """Say for each run at which step its moving average is first within 5% of where all runs end on average."""
    smooth = {run: [smoothed(c) for c in curves([run], seeds, steps, measure)[RUNS[run].label]] for run in runs}
    level = 0.95 * float(np.mean([curve[-_LAST:] for own in smooth.values() for curve in own]))
    firsts = {
        RUNS[run].label: [next((str(i) for i, one in enumerate(c, 1) if one >= level), "never") for c in own]
        for run, own in smooth.items()
    }
    told = "; ".join(f"{label}: {', '.join(first)}" for label, first in firsts.items())
    return f"steps until the moving average of the {measure} reward is {level:.3f}, by seed: {told}"


def main() -> None:
    """Train, plot and print."""
    parser = argparse.ArgumentParser(prog="python -m examples.learning", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="training steps (default: the experiment's own)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--fresh", action="store_true", help="ignore existing results")
    parser.add_argument("--plots", type=Path, default=Path("docs/plots"), help="folder for the plots")
    arguments = parser.parse_args()
    began = time.monotonic()
    train_all(arguments.runs, arguments.seeds, arguments.steps, fresh=arguments.fresh, jobs=arguments.jobs)
    print(f"{machine()}; commit {commit()}; {len(arguments.seeds)} seeds; {time.monotonic() - began:.0f} s")
    print(f"mean of the last {_LAST} steps (lowest..highest seed)")
    for name, experiment in EXPERIMENTS.items():
        runs = [run for run in arguments.runs if RUNS[run].experiment == name]
        if runs:
            panels = {
                title: curves(runs, arguments.seeds, arguments.steps, measure)
                for measure, title in experiment.panels.items()
            }
            file = arguments.plots / f"{FILES[name]}.png"
            draw(panels, [file, file.with_suffix(".svg")])
            print(f"\n{table(experiment, runs, arguments.seeds, arguments.steps)}\n\nplot: {file}")
            if "declared" in experiment.panels:
                print(plateaus(runs, arguments.seeds, arguments.steps, "declared"))


if __name__ == "__main__":
    main()
