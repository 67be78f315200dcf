"""GRPO with TRL on rewards from Adjudge: start it with `make serve`, then run `python rubric.py MODEL`."""

import sys
from pathlib import Path

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

from trainer_client.trl import RubricReward

dataset = load_dataset("json", data_files=str(Path(__file__).with_name("problems.jsonl")), split="train")


trainer = GRPOTrainer(
    model=sys.argv[1],
    reward_funcs=RubricReward("http://127.0.0.1:8000"),
    args=GRPOConfig("out", num_generations=4, per_device_train_batch_size=8, logging_steps=1, max_steps=100),
    train_dataset=dataset,
)
trainer.train()
