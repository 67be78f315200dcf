"""GRPO with TRL on the final answer: `python plain.py MODEL`."""

import sys
from pathlib import Path

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

dataset = load_dataset("json", data_files=str(Path(__file__).with_name("problems.jsonl")), split="train")


def right(completions, ground_truth, **_):
    """Return 1 if the last word is the answer, else 0."""
    return [float(text.split()[-1:] == [answer]) for text, answer in zip(completions, ground_truth, strict=True)]


trainer = GRPOTrainer(
    model=sys.argv[1],
    reward_funcs=right,
    args=GRPOConfig("out", num_generations=4, per_device_train_batch_size=8, logging_steps=1, max_steps=100),
    train_dataset=dataset,
)
trainer.train()
