"""`python -m benchmarks.agreement.passages DATA`: long texts, read whole, without their middle, or in passages.

Three tasks, each with texts of 5,000 to 18,000 characters:

- `wice-stacked`: a sentence of Wikipedia and eight pages in a row as grounding, of which one is the page that it cites.
- `contract-source`: a statement about a contract, which is the grounding.
- `contract-response`: the statement as the criterion, and the contract as the response.

`truncated` and `passages` show as many characters of the text. Replies are kept with those of
`python -m benchmarks.agreement`, so a stopped run resumes.
"""

import argparse
import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.agreement.contenders import AdjudgeContender
from benchmarks.agreement.items import Item, contractnli, wice
from benchmarks.agreement.metrics import measure
from benchmarks.agreement.store import ReplyStore, StoredEngine, engine_of, slug
from benchmarks.agreement.tables import notes, table_rows
from benchmarks.agreement.verdicts import judge_items
from benchmarks.report import publish

STACKED = 8
"""How many pages stand in a row, and how many statements there are about a text."""


def stacked(folder: Path, texts: int) -> Iterator[Item]:
    """Yield sentences with the pages of `STACKED` of them as the grounding of each."""
    statements = list(wice(folder))
    for number in range(min(texts, len(statements) // STACKED)):
        items = statements[number * STACKED : (number + 1) * STACKED]
        grounding = "\n\n".join([item.grounding or "" for item in items])
        for item in items:
            yield replace(item, task="wice-stacked", row=str(number), grounding=grounding)


def contracts(folder: Path, texts: int) -> Iterator[Item]:
    """Yield statements about every fourth contract, by length, half of them entailed where there are as many."""
    by_contract: dict[str, list[Item]] = {}
    for item in contractnli(folder):
        by_contract.setdefault(item.row, []).append(item)
    for own in list(by_contract.values())[5::4][:texts]:
        met = [item for item in own if item.label][: STACKED // 2]
        others = [item for item in own if not item.label]
        chosen = [*met, *[*others[::2], *others[1::2]][: STACKED - len(met)]]
        for item in chosen:
            yield replace(
                item,
                task="contract-source",
                prompt="Summarize one point of the agreement.",
                grounding=item.response,
                response=item.criterion,
                criterion="Every fact in the response is supported by the source.",
            )
        for item in chosen:
            yield replace(item, task="contract-response")


async def compare(model: str, items: list[Item], characters: int) -> None:
    """Judge the items in the three ways, and print the table."""
    under = engine_of(model)
    engine = StoredEngine(ReplyStore.of_model(model), under)
    ways = {
        "whole": AdjudgeContender(engine),
        "truncated": AdjudgeContender(engine, keep=characters),
        "passages": AdjudgeContender(engine, passages=characters),
    }
    try:
        verdicts = {}
        for name, way in ways.items():
            await way.start()
            verdicts[name] = (await judge_items(way, items)).verdicts
    finally:
        await under.close()
    publish(
        f"passages_{slug(model)}",
        f"Texts of {min(map(_length, items)):,} to {max(map(_length, items)):,} characters, {model}: read whole, or "
        f"{characters:,} characters of them",
        table_rows(measure(items, verdicts), list(ways)),
        notes(list(ways)),
    )


def _length(item: Item) -> int:
    return max(len(item.grounding or ""), len(item.response))


def main() -> None:
    """Print the table, and write it to a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the data sets")
    parser.add_argument("--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--texts", type=int, default=6, help="texts per task, with eight statements each")
    parser.add_argument("--characters", type=int, default=2000, help="how many characters of a text are shown")
    given = parser.parse_args()
    items = [*stacked(given.data, given.texts), *contracts(given.data, given.texts)]
    asyncio.run(compare(given.model, items, given.characters))


if __name__ == "__main__":
    main()
