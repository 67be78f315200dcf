"""One run: `python -m examples.learning.train RUN SEED --url URL --start FOLDER --out FILE`.

Trains the policy of a folder by one of `runs.RUNS` against a running service, and writes down how right its samples
were at each step.
"""

import argparse
import json
from pathlib import Path

import torch
from datasets import Dataset
from examples.learning.accuracy_callback import AccuracyCallback, write_problem
from examples.learning.arithmetic import problems
from examples.learning.runs import EXPERIMENTS, RUNS, TrainingRun
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainer_client.trl import RubricGRPOConfig, RubricGRPOTrainer, RubricReward

GROUP = 8


def train(run: TrainingRun, seed: int, url: str, start: Path, steps: int) -> list[dict[str, float]]:
    """Train, and give what was seen at each step."""
    watch = AccuracyCallback()
    trainer = RubricGRPOTrainer(
        AutoModelForCausalLM.from_pretrained(start),
        [RubricReward(url, **run.reward), watch],
        settings(run, seed, steps),
        train_dataset=dataset(run, seed, steps),
        processing_class=AutoTokenizer.from_pretrained(start),
        callbacks=[watch],
    )
    trainer.train()
    return watch.steps


def dataset(run: TrainingRun, seed: int, steps: int) -> Dataset:
    """Make the problems of a run, each with its rubric."""
    experiment = EXPERIMENTS[run.experiment]
    drawn = problems(
        1_000_000 + seed, experiment.prompts * steps, steps=experiment.start.steps, unexplained=experiment.unexplained
    )
    return Dataset.from_list(
        [
            {
                "prompt": problem.prompt,
                "problem": write_problem(problem),
                "rubric": json.dumps(run.rubric(problem)),
                "ground_truth": problem.answer,
                "reference_answer": f"\\boxed{{{problem.answer}}}",
            }
            for problem in drawn
        ]
    )


def settings(run: TrainingRun, seed: int, steps: int) -> RubricGRPOConfig:
    """Give the settings of a run: what all have in common, and its own."""
    return RubricGRPOConfig(
        output_dir=".cache/learning/out",
        method=run.method,
        method_options=dict(run.options),
        max_steps=steps,
        per_device_train_batch_size=EXPERIMENTS[run.experiment].prompts * GROUP,
        max_completion_length=EXPERIMENTS[run.experiment].start.longest,
        learning_rate=6e-4,
        lr_scheduler_type="linear",
        adam_beta2=0.99,
        warmup_steps=3,
        max_grad_norm=1.0,
        reward_weights=[1.0, 0.0],
        shuffle_dataset=False,
        seed=seed,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        **{"temperature": 1.0, "top_p": 1.0, "top_k": 0, "num_generations": GROUP, **run.settings},
    )


def main() -> None:
    """Train one run and write it down."""
    parser = argparse.ArgumentParser(description="one training run of the learning example")
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("seed", type=int)
    parser.add_argument("--url", required=True, help="address of a running Adjudge")
    parser.add_argument("--start", type=Path, required=True, help="folder of the policy to begin with")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="file for what was seen at each step")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seen = train(RUNS[arguments.run], arguments.seed, arguments.url, arguments.start, arguments.steps)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(seen), encoding="utf-8")


if __name__ == "__main__":
    main()
