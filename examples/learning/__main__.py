"""Every run, against a service of its own: `python -m examples.learning`.

Teaches a policy by examples, starts `adjudge serve`, trains the policy by each run of `runs.RUNS` with three seeds, two
runs at a time, and writes a table and a plot. What is there already is not done again; `--fresh` does.
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
from benchmarks.server import running_service
from examples.learning.plot import draw
from examples.learning.policy import CACHE, taught
from examples.learning.runs import RUNS
from examples.learning.train import TEACHING
from tqdm import tqdm

PANELS = {"answer": "Right answers", "steps": "Right steps", "faithful": "Right answers by right steps alone"}
_LAST = 10


def train_all(runs: Sequence[str], seeds: Sequence[int], steps: int, *, fresh: bool, jobs: int) -> None:
    """Train what was not trained yet, `jobs` at a time."""
    taught(TEACHING)
    start = CACHE / TEACHING.name
    todo = [(run, seed) for seed in seeds for run in runs if fresh or not result(run, seed, steps).exists()]
    if not todo:
        return
    # programs verify everything here, so that the engine is never asked
    with running_service("scripted://hash") as (url, _), tqdm(total=len(todo), unit="run", desc="training") as bar:

        def one(job: tuple[str, int]) -> None:
            run, seed = job
            command = [sys.executable, "-m", "examples.learning.train", run, str(seed), "--url", url]
            command += ["--start", str(start), "--steps", str(steps), "--out", str(result(run, seed, steps))]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            if done.returncode:
                raise SystemExit(f"{run}, seed {seed}: {done.stderr[-2000:]}")
            bar.update()

        with ThreadPoolExecutor(jobs) as pool:
            for _ in pool.map(one, todo):
                pass


def result(run: str, seed: int, steps: int) -> Path:
    """Where a run is written down."""
    return CACHE / "runs" / TEACHING.name / f"{run}-{seed}-{steps}.json"


def curves(runs: Sequence[str], seeds: Sequence[int], steps: int, what: str) -> Mapping[str, list[list[float]]]:
    """Give one measure of the runs, by label."""
    return {
        RUNS[run].label: [
            [step[what] for step in json.loads(result(run, seed, steps).read_text(encoding="utf-8"))] for seed in seeds
        ]
        for run in runs
    }


def table(runs: Sequence[str], seeds: Sequence[int], steps: int) -> str:
    """Give each run's last steps, mean and range over the seeds, as a table of Markdown."""
    lines = ["| run | " + " | ".join(title.lower() for title in PANELS.values()) + " |"]
    lines.append("| --- |" + " ---: |" * len(PANELS))
    for run in runs:
        cells = []
        for what in PANELS:
            (seen,) = curves([run], seeds, steps, what).values()
            ends = [float(np.mean(curve[-_LAST:])) for curve in seen]
            cells.append(f"{np.mean(ends):.3f} ({min(ends):.3f}..{max(ends):.3f})")
        lines.append(f"| {RUNS[run].label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Train, plot and print."""
    parser = argparse.ArgumentParser(prog="python -m examples.learning", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--fresh", action="store_true", help="train again what is there")
    parser.add_argument("--plot", type=Path, default=Path("docs/plots/learning.png"))
    arguments = parser.parse_args()
    began = time.monotonic()
    train_all(arguments.runs, arguments.seeds, arguments.steps, fresh=arguments.fresh, jobs=arguments.jobs)
    drawn = {title: curves(arguments.runs, arguments.seeds, arguments.steps, what) for what, title in PANELS.items()}
    draw(drawn, [arguments.plot, arguments.plot.with_suffix(".svg")])
    print(f"{machine()}; commit {commit()}; {len(arguments.seeds)} seeds; {time.monotonic() - began:.0f} s")
    print(f"mean of the last {_LAST} of {arguments.steps} steps (lowest..highest seed)\n")
    print(table(arguments.runs, arguments.seeds, arguments.steps))
    print(f"\nplot: {arguments.plot}")


if __name__ == "__main__":
    main()
