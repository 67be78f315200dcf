"""Train one run: `python -m examples.learning.train RUN SEED --url URL --start FOLDER --steps N --out FILE`.

Trains the policy in a folder by one of `runs.RUNS` against a running service, and writes the accuracy of its samples at
each step to a file.
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
    """Train, and return the measures of each step."""
    accuracy = AccuracyCallback()
    trainer = RubricGRPOTrainer(
        AutoModelForCausalLM.from_pretrained(start),
        [RubricReward(url, **run.reward), accuracy],
        settings(run, seed, steps),
        train_dataset=dataset(run, seed, steps),
        processing_class=AutoTokenizer.from_pretrained(start),
        callbacks=[accuracy],
    )
    trainer.train()
    return accuracy.steps


def dataset(run: TrainingRun, seed: int, steps: int) -> Dataset:
    """Create the dataset of a run: its problems, each with its rubric."""
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
    """Create the settings of a run: the common ones, and its own."""
    return RubricGRPOConfig(
        output_dir=".cache/learning/out",
        run_name=f"{run.label}, seed {seed}",
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
    """Train one run and save its measures."""
    parser = argparse.ArgumentParser(description="one training run of the learning example")
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("seed", type=int)
    parser.add_argument("--url", required=True, help="address of a running Adjudge service")
    parser.add_argument("--start", type=Path, required=True, help="folder of the starting policy")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="file for the measures of each step")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measures = train(RUNS[arguments.run], arguments.seed, arguments.url, arguments.start, arguments.steps)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(measures), encoding="utf-8")


if __name__ == "__main__":
    main()
