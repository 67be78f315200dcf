"""One run: `python -m examples.learning.train RUN SEED --url URL --start FOLDER --out FILE`.

Trains the policy of a folder by one of `runs.RUNS` against a running service, and writes down how right its samples
were at each step. No problem comes twice, so that what it samples for training also tells how well it does.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from examples.learning.arithmetic import Operation, Problem, problems
from examples.learning.policy import Teaching
from examples.learning.rubrics import answer_is_right, step_accuracy
from examples.learning.runs import RUNS, Run
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainer_client.trl import RubricGRPOConfig, RubricGRPOTrainer, RubricReward

PROMPTS = 32
GROUP = 8
TEACHING = Teaching()


class Watch:
    """A reward function that rewards nothing and counts how right the samples are."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.__name__ = "watch"

    def __call__(self, completions: list[str], problem: list[str], **_: Any) -> list[float]:
        """Write one step down."""
        pairs = [(_problem(text), said) for text, said in zip(problem, completions, strict=True)]
        right = [answer_is_right(asked, said) for asked, said in pairs]
        steps = [step_accuracy(asked, said) for asked, said in pairs]
        count = len(pairs)
        self.steps.append(
            {
                "answer": sum(right) / count,
                "steps": sum(steps) / count,
                "faithful": sum(own and share == 1.0 for own, share in zip(right, steps, strict=True)) / count,
                "length": sum(map(len, completions)) / count,
            }
        )
        return [0.0] * count


def train(run: Run, seed: int, url: str, start: Path, steps: int) -> list[dict[str, float]]:
    """Train, and give what was seen at each step."""
    watch = Watch()
    trainer = RubricGRPOTrainer(
        AutoModelForCausalLM.from_pretrained(start),
        [RubricReward(url, **run.reward), watch],
        _settings(run, seed, steps),
        train_dataset=dataset(run, seed, steps),
        processing_class=AutoTokenizer.from_pretrained(start),
    )
    trainer.train()
    return watch.steps


def dataset(run: Run, seed: int, steps: int) -> Dataset:
    """Make the problems of a run, each with its rubric."""
    drawn = problems(1_000_000 + seed, PROMPTS * steps, steps=TEACHING.steps)
    return Dataset.from_list(
        [
            {
                "prompt": problem.prompt,
                "problem": json.dumps([problem.start, problem.operations]),
                "rubric": json.dumps(run.rubric(problem)),
                "ground_truth": problem.answer,
                "reference_answer": f"\\boxed{{{problem.answer}}}",
            }
            for problem in drawn
        ]
    )


def _settings(run: Run, seed: int, steps: int) -> RubricGRPOConfig:
    return RubricGRPOConfig(
        output_dir=".cache/learning/out",
        method=run.method,
        method_options=dict(run.options),
        max_steps=steps,
        per_device_train_batch_size=PROMPTS * GROUP,
        max_completion_length=TEACHING.longest,
        learning_rate=6e-4,
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
        **{"temperature": 1.0, "num_generations": GROUP, **run.settings},
    )


def _problem(text: str) -> Problem:
    start, operations = json.loads(text)
    return Problem(start, tuple([Operation(*operation) for operation in operations]))


def main() -> None:
    """Train one run and write it down."""
    parser = argparse.ArgumentParser(description="one training run of the learning example")
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("seed", type=int)
    parser.add_argument("--url", required=True, help="address of a running Adjudge")
    parser.add_argument("--start", type=Path, required=True, help="folder of the policy to begin with")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, required=True, help="file for what was seen at each step")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seen = train(RUNS[arguments.run], arguments.seed, arguments.url, arguments.start, arguments.steps)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(seen), encoding="utf-8")


if __name__ == "__main__":
    main()
