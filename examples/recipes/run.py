"""Train by a recipe: `python -m examples.recipes.srar MODEL DATA URL OUT [--set NAME=JSON …]`.

DATA is a JSONL file of rows with `prompt`, `rubric` and the other columns that the recipe's method reads. URL is the
address of the service. `srar` and `rar` add an instruction to each prompt that asks the policy for steps. A recipe's
settings are meant for a cluster; `--set` replaces any of them, and `--prompts` the number of prompts in a generation
batch.
"""

import argparse
import json
import sys

from datasets import load_dataset
from transformers import AutoTokenizer

from trainer_client.steps import with_step_format
from trainer_client.trl import RubricGRPOConfig, RubricGRPOTrainer, RubricReward
from trainer_client.trl.config import recipe
from trainer_client.trl.methods import method_class


def run(name: str) -> RubricGRPOTrainer:
    """Train by a recipe, with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for argument in ("model", "data", "url", "out"):
        parser.add_argument(argument)
    parser.add_argument("--prompts", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=JSON")
    given = parser.parse_args(sys.argv[1:])
    settings = {key: json.loads(value) for key, _, value in (one.partition("=") for one in given.set)}
    dataset = load_dataset("json", data_files=given.data, split="train")
    if method_class(recipe(name).method).stepwise:
        dataset = dataset.map(lambda row: {"prompt": with_step_format(row["prompt"])})
    trainer = RubricGRPOTrainer(
        model=given.model,
        reward_funcs=RubricReward(given.url, **recipe(name).reward),
        args=RubricGRPOConfig.recipe(name, given.out, prompts=given.prompts, **settings),
        train_dataset=dataset,
        processing_class=AutoTokenizer.from_pretrained(given.model, padding_side="left"),
    )
    trainer.train()
    return trainer
