"""`python -m benchmarks.agreement DATA`: score public data sets with real judges and compare with their labels.

Each task goes through `adjudge score` as a user would run it. What is printed is what was measured: weak judges show
as weak. The folder is read in place and nothing of it is kept but figures.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.agreement.tasks import TASKS, Task
from benchmarks.figures import agreement, auroc
from benchmarks.report import publish


def run(task: Task, model: str) -> list[dict[str, Any]]:
    """Score a task's groups; returns what `adjudge score` wrote."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "groups.jsonl"), Path(folder, "rewards.jsonl")
        source.write_text("".join(json.dumps(group) + "\n" for group in task.groups), encoding="utf-8")
        command = [sys.executable, "-m", "adjudge_services.cli", "score", str(source), "--mode", task.mode]
        command += ["--engine", f"llamacpp://{model}", "--output", str(target), "--on-failure", "skip"]
        subprocess.run(command, check=False)
        return [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]


def compare(name: str, task: Task, model: str, scored: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row: how often verdicts equal labels, and how well their probabilities order them."""
    verdicts, labels, probabilities, named, right, ours, theirs = [], [], [], 0, 0, [], []
    failed = 0
    for group in scored:
        for response, wanted in zip(group["responses"], task.labels[group["id"]], strict=True):
            for verdict in response["verdicts"]:
                if verdict["criterion"] not in wanted:
                    continue
                if verdict["status"] == "failed":
                    failed += 1
                    continue
                verdicts.append(int(verdict["score"]))
                probabilities.append(verdict["probability"])
                labels.append(wanted[verdict["criterion"]])
                if verdict["step"] is not None and verdict["score"] and wanted[verdict["criterion"]]:
                    named += 1
                    right += verdict["step"] == task.steps[group["id"]]
        if group["id"] in task.rewards and group["responses"][0]["reward"] is not None:
            ours.append(group["responses"][0]["reward"])
            theirs.append(task.rewards[group["id"]])
    observed, kappa = agreement(verdicts, labels)
    return {
        "task": name,
        "labels by": task.labelled_by,
        "model": model.removeprefix("qwen2.5-coder-"),
        "verdicts": len(verdicts),
        "failed": failed,
        "yes, labels": f"{np.mean(labels):.2f}",
        "yes, judge": f"{np.mean(verdicts):.2f}",
        "agreement": f"{observed:.2f}",
        "kappa": f"{kappa:.2f}",
        "AUROC": f"{auroc(probabilities, labels):.2f}",
        "also": _also(named, right, ours, theirs),
    }


def _also(named: int, right: int, ours: Sequence[float], theirs: Sequence[float]) -> str:
    if named:
        return f"first wrong step named: {right} of {named}"
    if len(ours) > 2:
        return f"reward correlation {np.corrcoef(ours, theirs)[0, 1]:.2f}"
    return ""


def main() -> None:
    """Run it for each model and task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder with the data sets")
    parser.add_argument("--models", nargs="+", default=["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--size", type=int, help="rows per task")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.tasks:
        make, size = TASKS[name]
        task = make(arguments.data, arguments.size or size)
        for model in arguments.models:
            scored = run(task, model)
            rows.append(compare(name, task, model, scored))
            print(rows[-1], flush=True)
    publish(
        "agreement", "Verdicts against labels", rows, ["agreement and kappa are of verdicts; AUROC of probabilities"]
    )


if __name__ == "__main__":
    main()
