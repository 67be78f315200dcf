"""How far a policy gets before it is trained: `python -m examples.learning.before`.

Samples after the plain question, after the question with all points of its rubric, and after a previous answer with
what that one lacks, on plain problems and on those with a sign that nobody has explained.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from examples.learning.arithmetic import Problem, problems
from examples.learning.lessons import lacks
from examples.learning.policy import READING, UNEXPLAINED, taught, write
from examples.learning.rubrics import answer_is_right, plain_rubric, step_accuracy

from trainer_client.measures import pass_at_k
from trainer_client.refine import refinement_prompt
from trainer_client.scaffold import scaffolded_prompt

PROBLEMS_SEED = 500_000
SAMPLES = 8
KS = (1, SAMPLES)

Sample = Callable[[Sequence[str], int], list[str]]
"""Writes so many consecutive responses to each prompt."""


def measure(asked: Sequence[Problem], prompts: Sequence[str], sample: Sample) -> Mapping[str, float]:
    """Sample responses to a prompt for each problem; give the share of right steps, and pass@k for each of `KS`."""
    said = sample(prompts, SAMPLES)
    pairs = list(zip([problem for problem in asked for _ in range(SAMPLES)], said, strict=True))
    right = np.array([answer_is_right(*pair) for pair in pairs]).reshape(len(asked), SAMPLES)
    passed = {f"pass@{k}": float(np.mean([pass_at_k(SAMPLES, int(own.sum()), k) for own in right])) for k in KS}
    return {"right steps": float(np.mean([step_accuracy(*pair) for pair in pairs])), **passed}


def longer_prompts(asked: Sequence[Problem], sample: Sample) -> Mapping[str, list[str]]:
    """Give what each problem can be asked with: the question, all points of its rubric, an answer that lacks some."""
    previous = sample([problem.prompt for problem in asked], 1)
    lacking = [lacks(problem, said) for problem, said in zip(asked, previous, strict=True)]
    return {
        "question alone": [problem.prompt for problem in asked],
        "with all points": [str(scaffolded_prompt(own.prompt, plain_rubric(own)["criteria"])) for own in asked],
        "refinement": [
            str(refinement_prompt(problem.prompt, said, missing)) if missing else problem.prompt
            for problem, said, missing in zip(asked, previous, lacking, strict=True)
        ],
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=48, help="how many of each kind (48)")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model, tokenizer = taught(READING)

    def sample(prompts: Sequence[str], samples: int) -> list[str]:
        return write(model, tokenizer, prompts, tokens=READING.longest, samples=samples)

    print(f"| problems | prompt | right steps | {' | '.join(f'pass@{k}' for k in KS)} |")
    print("| --- | --- |" + " ---: |" * (len(KS) + 1))
    for name, unexplained in (("plain", 0), ("hard", UNEXPLAINED)):
        asked = problems(PROBLEMS_SEED, arguments.problems, steps=READING.steps, unexplained=unexplained)
        for title, prompts in longer_prompts(asked, sample).items():
            cells = " | ".join(f"{value:.3f}" for value in measure(asked, prompts, sample).values())
            print(f"| {name} | {title} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
