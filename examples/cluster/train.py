"""Train by a judge at ADJUDGE_URL: `accelerate launch train.py --model MODEL --rows rows.jsonl --output_dir out`.

All settings of `RubricGRPOConfig`, and so all of TRL's, are options too. A run that is started again continues from
its last checkpoint.
"""

from dataclasses import dataclass
from pathlib import Path

from datasets import load_dataset
from transformers.trainer_utils import get_last_checkpoint
from trl import TrlParser

from trainer_client.trl import RubricGRPOConfig, RubricGRPOTrainer, RubricReward


@dataclass
class Setup:
    """What is trained, on what, and how long the judge may take."""

    model: str
    rows: str
    deadline_s: float = 60.0
    judge_lease_s: float | None = None


if __name__ == "__main__":
    setup, args = TrlParser((Setup, RubricGRPOConfig)).parse_args_and_config()
    trainer = RubricGRPOTrainer(
        model=setup.model,
        reward_funcs=RubricReward(deadline_s=setup.deadline_s, judge_lease_s=setup.judge_lease_s),
        args=args,
        train_dataset=load_dataset("json", data_files=setup.rows, split="train"),
    )
    out = Path(args.output_dir)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(out)) if out.is_dir() else None)
    trainer.save_model(str(out / "last"))
