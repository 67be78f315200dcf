"""`python -m benchmarks.judging_configs DATA`: criteria per call (1, 4, all) and reasons first, on labelled samples.

Each configuration goes through a service with one engine and judges all samples of a data set at once. With reasons
first, fewer samples are judged, since a call takes about ten times as long. The data is read in place; only figures are
stored.
"""

import argparse
import asyncio
import re
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.judging_configs.measure import ask, call_configs, row
from benchmarks.judging_configs.samples import DATA_SETS
from benchmarks.report import publish
from benchmarks.server import running_service
from trainer_client import AsyncClient
from trainer_client.wire import JudgingProtocol

NOTES = (
    "k: criteria per call; computed, reused, written: prompt tokens and tokens written per judgement;",
    "agreement: of verdicts with labels, without failed verdicts; AUROC only if the judge gives probabilities",
)


async def measure(
    url: str, folder: Path, names: list[str], protocols: list[JudgingProtocol], limit: int | None, reasoned: int | None
) -> tuple[str, list[dict[str, Any]]]:
    """Return the judge's name, and a row for each data set and configuration."""
    judge = ""
    table: list[dict[str, Any]] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with AsyncClient(url, run="benchmark") as client:
        with Progress(*columns) as bar:
            for name in names:
                data = DATA_SETS[name]
                plain = data.plain if limit is None else limit
                samples = data.make(folder, plain)
                few = samples[: min(plain, data.reasoned) if reasoned is None else reasoned]
                for config in call_configs(protocols, max(sample.criteria for sample in samples)):
                    chosen = few if config.rationale else samples
                    if not chosen:
                        continue
                    task = bar.add_task(f"{name}: {config}", total=len(chosen))
                    results = await ask(client, chosen, config, f"({len(table) + 1})", partial(bar.advance, task))
                    table.append(row(name, config, chosen, results))
                    judge = next((a.judge.model for a in results.answers if a.judge), judge)
    return judge, table


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with the data sets")
    parser.add_argument("--engine", default="llamacpp://qwen2.5-coder-0.5b", help="engine URL")
    parser.add_argument("--data", nargs="+", default=list(DATA_SETS), choices=list(DATA_SETS))
    parser.add_argument("--protocols", nargs="+", default=["binary"], choices=["binary", "checklist"])
    parser.add_argument("--limit", type=int, help="number of samples of each data set")
    parser.add_argument("--reasoned", type=int, help="number of samples that are also judged with reasons first")
    arguments = parser.parse_args()
    with running_service(arguments.engine) as (url, _):
        judge, rows = asyncio.run(
            measure(
                url,
                arguments.folder,
                arguments.data,
                arguments.protocols,
                arguments.limit,
                arguments.reasoned,
            )
        )
    slug = re.sub(r"[^a-z0-9.]+", "-", judge.lower()).strip("-")
    publish(f"judging_configs_{slug}", f"Judging configurations with {judge}", rows, NOTES)


if __name__ == "__main__":
    main()
