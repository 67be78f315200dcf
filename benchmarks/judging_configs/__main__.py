"""`python -m benchmarks.judging_configs DATA`: criteria in a call (1, 4, all) and reasons first, on labelled samples.

Each way goes through a service with one engine, and asks the samples of a data set at once. With reasons first fewer
samples are asked, since a call then takes some ten times as long. The folder is read in place and nothing of it is
kept but figures.
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
    "k: criteria in a call; computed, reused, written: prompt tokens and tokens written for each judgement;",
    "agreement: of verdicts with labels, where there is a verdict; AUROC where the judge gives probabilities",
)


async def measure(
    url: str, folder: Path, names: list[str], protocols: list[JudgingProtocol], limit: int | None, reasoned: int | None
) -> tuple[str, list[dict[str, Any]]]:
    """The judge's name and a row for each data set and way."""
    judge = ""
    found: list[dict[str, Any]] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with AsyncClient(url, run="benchmark") as client:
        with Progress(*columns) as bar:
            for name in names:
                data = DATA_SETS[name]
                plain = data.plain if limit is None else limit
                samples = data.make(folder, plain)
                few = samples[: min(plain, data.reasoned) if reasoned is None else reasoned]
                for config in call_configs(protocols, max(sample.criteria for sample in samples)):
                    asked_of = few if config.rationale else samples
                    if not asked_of:
                        continue
                    task = bar.add_task(f"{name}: {config}", total=len(asked_of))
                    asked = await ask(client, asked_of, config, f"({len(found) + 1})", partial(bar.advance, task))
                    found.append(row(name, config, asked_of, asked))
                    judge = next((a.judge.model for a in asked.answers if a.judge), judge)
    return judge, found


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with the data sets")
    parser.add_argument("--engine", default="llamacpp://qwen2.5-coder-0.5b", help="engine URL")
    parser.add_argument("--data", nargs="+", default=list(DATA_SETS), choices=list(DATA_SETS))
    parser.add_argument("--protocols", nargs="+", default=["binary"], choices=["binary", "checklist"])
    parser.add_argument("--limit", type=int, help="samples of each data set")
    parser.add_argument("--reasoned", type=int, help="how many of them are also asked with reasons first")
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
    publish(f"judging_configs_{slug}", f"Ways of asking, judged by {judge}", rows, NOTES)


if __name__ == "__main__":
    main()
