"""Write the agreement benchmark's items as labelled rows, for the commands that measure judges on files.

`python -m benchmarks.agreement.rows DATA > held.jsonl` writes items of the half on which nothing was fitted.
`adjudge evaluate`, `bakeoff` and `cascade` read the file.
"""

import argparse
import hashlib
import json
from typing import Any

from benchmarks.agreement.items import Item, add_item_options, chosen_items
from judge_server.evaluation.labelled import criterion


def labelled_row(item: Item) -> dict[str, Any]:
    """Return an item as a labelled group of one response."""
    sources = {name: getattr(item, name) for name in ("grounding", "reference_answer", "ground_truth")}
    return {
        "id": hashlib.sha256(item.row.encode()).hexdigest(),  # a data set may name a row by its whole question
        "task": item.task,
        "prompt": item.prompt,
        "responses": [item.response],
        "rubric": {"criteria": [criterion("c", item.criterion, item.kind).model_dump(exclude_unset=True)]},
        "labels": [{"c": item.label}],
    } | {name: text for name, text in sources.items() if text is not None}


def main() -> None:
    """Write the rows to standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_item_options(parser, size=16)
    for items in chosen_items(parser.parse_args()).values():
        for item in items:
            print(json.dumps(labelled_row(item), ensure_ascii=False))


if __name__ == "__main__":
    main()
