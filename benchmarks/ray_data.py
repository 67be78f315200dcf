"""A Ray Dataset judged by a service, while actors are killed: `python -m benchmarks.ray_data --rows 1000000`.

Starts `adjudge serve` with the scripted engine, and a local Ray with `RubricScorer` in `--actors` actors. Each row has
a response of 400 characters under a rubric of two criteria. While the job runs, the process of an actor is killed
`--kills` times, at equal distances. Prints how many rows have a reward, how many responses the ledger recorded and how
many calls the judge answered (however often Ray repeats a batch, each should count once), rows per second, and the
memory of the service and of the driver after each tenth of the rows. Needs `pip install 'ray[data]'`.
"""

import argparse
import json
import os
import signal
import tempfile
import threading
import time
from typing import Any

import httpx2
import psutil
import pyarrow
import ray
from tests.services.processes import listening

from benchmarks.report import commit, machine
from trainer_client import Client
from trainer_client.ray import RubricScorer

RUBRIC = [{"id": "right", "description": "Is right."}, {"id": "brief", "description": "Is brief.", "weight": 3}]
RUN = "ray"


def rows(batch: pyarrow.Table) -> pyarrow.Table:
    """A prompt and a response for each number; no two are alike."""
    numbers = batch["id"].to_pylist()
    filler = "and so on, " * 36
    return pyarrow.table(
        {
            "id": numbers,
            "prompt": [f"Is {n} prime?" for n in numbers],
            "response": [f"The number {n} is looked at, {filler}and it may be." for n in numbers],
        }
    )


def actor_processes() -> list[psutil.Process]:
    """The processes of the scoring actors."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        title = " ".join(process.info["cmdline"] or [])
        if title.startswith("ray::") and "RubricScorer" in title:
            found.append(process)
    return found


def megabytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(psutil.Process(pid).memory_info().rss / 1e6)


def metric(url: str, name: str) -> float:
    """The sum of a counter of `/metrics`."""
    lines = httpx2.get(f"{url}/metrics", timeout=60).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def measure(count: int, actors: int, kills: int, batch: int) -> dict[str, Any]:
    """Judge so many rows, and kill so many actors meanwhile."""
    with (
        tempfile.TemporaryDirectory(prefix="adjudge-ray-") as folder,
        listening("serve", "--port", "0", "--engine", "scripted://hash", ADJUDGE_DATA_DIR=folder) as service,
    ):
        with Client(service.url) as client:
            service.wait_until_ready(client)
        ray.init(num_cpus=actors + 1, include_dashboard=False, log_to_driver=False, object_store_memory=400_000_000)
        ray.data.DataContext.get_current().enable_progress_bars = False
        try:
            dataset = (
                ray.data.range(count, override_num_blocks=max(1, count // 5_000))
                .map_batches(rows, batch_format="pyarrow")
                .map_batches(
                    RubricScorer,
                    fn_constructor_kwargs={"rubric": RUBRIC, "url": service.url, "run": RUN},
                    batch_format="pyarrow",
                    batch_size=batch,
                    concurrency=actors,
                )
            )
            found = consume(dataset, count, kills, service.process.pid, service.url)
        finally:
            ray.shutdown()
        return found | {"keys_not_looked_up": sum("Idempotency-Key ignored" in line for line in service.said)}


def consume(dataset: Any, count: int, kills: int, pid: int, url: str) -> dict[str, Any]:
    """Read the scored rows, killing actors on the way, and check what they say."""
    done = rewarded = killed = 0
    memory: list[tuple[int, int, int]] = []
    started = time.monotonic()
    for part in dataset.iter_batches(batch_format="pyarrow", batch_size=2_000):
        done += part.num_rows
        rewarded += part.num_rows - part["reward"].null_count
        if killed < kills and done >= count * (killed + 1) / (kills + 1):
            for process in actor_processes()[:1]:
                os.kill(process.pid, signal.SIGKILL)
                killed += 1
        if done >= count * (len(memory) + 1) / 10:
            memory.append((done, megabytes(pid), megabytes(os.getpid())))
    seconds = time.monotonic() - started
    pause = threading.Event()
    while (state := httpx2.get(f"{url}/v1/ledger", timeout=60).json())["waiting"]:
        pause.wait(0.5)
    with Client(url) as client:
        run = client.run_report(RUN).run
    return {
        "rows": done,
        "rewarded": rewarded,
        "actors_killed": killed,
        "seconds": round(seconds, 1),
        "rows_per_second": round(done / seconds),
        "memory_mb": memory,
        "recorded_responses": run.responses,
        "engine_calls": metric(url, "adjudge_judge_calls_total"),
        "ledger": state,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--batch", type=int, default=500)
    options = parser.parse_args()
    result = measure(options.rows, options.actors, options.kills, options.batch)
    print(json.dumps(result, indent=1))
    print(f"{machine()}; commit {commit()}")


if __name__ == "__main__":
    main()
