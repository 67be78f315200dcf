"""Evaluate a policy before reinforcement learning: `python -m examples.learning.evaluate_untrained`.

Samples from the plain question, from the question with all points of its rubric, and from a previous answer with its
failed criteria, on plain problems and on problems with an unexplained operator.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from examples.learning.arithmetic import ArithmeticProblem, problems
from examples.learning.demonstrations import failed_criteria
from examples.learning.policy import UNEXPLAINED_STEPS, WITH_LONG_PROMPTS, load_or_train_policy, sample_solutions
from examples.learning.rubrics import answer_is_right, plain_rubric, step_accuracy

from trainer_client.measures import pass_at_k
from trainer_client.refine import refinement_prompt
from trainer_client.scaffold import scaffolded_prompt

PROBLEMS_SEED = 500_000
SAMPLES = 8
KS = (1, SAMPLES)

SampleFunction = Callable[[Sequence[str], int], list[str]]
"""Takes prompts and a number k; returns k consecutive responses to each prompt."""


def measure(
    problem_set: Sequence[ArithmeticProblem], prompts: Sequence[str], sample: SampleFunction
) -> Mapping[str, float]:
    """Sample responses to a prompt of each problem, and return the share of right steps and pass@k for each of `KS`."""
    responses = sample(prompts, SAMPLES)
    pairs = list(zip([problem for problem in problem_set for _ in range(SAMPLES)], responses, strict=True))
    right = np.array([answer_is_right(*pair) for pair in pairs]).reshape(len(problem_set), SAMPLES)
    passed = {f"pass@{k}": float(np.mean([pass_at_k(SAMPLES, int(own.sum()), k) for own in right])) for k in KS}
    return {"right steps": float(np.mean([step_accuracy(*pair) for pair in pairs])), **passed}


def prompt_variants(problem_set: Sequence[ArithmeticProblem], sample: SampleFunction) -> Mapping[str, list[str]]:
    """Return the prompts of each problem: the question, with all points of its rubric, and as a refinement."""
    previous = sample([problem.prompt for problem in problem_set], 1)
    failed = [failed_criteria(problem, responses) for problem, responses in zip(problem_set, previous, strict=True)]
    return {
        "question alone": [problem.prompt for problem in problem_set],
        "with all points": [str(scaffolded_prompt(own.prompt, plain_rubric(own)["criteria"])) for own in problem_set],
        "refinement": [
            str(refinement_prompt(problem.prompt, responses, missing)) if missing else problem.prompt
            for problem, responses, missing in zip(problem_set, previous, failed, strict=True)
        ],
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=48, help="number of problems of each kind (48)")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model, tokenizer = load_or_train_policy(WITH_LONG_PROMPTS)

    def sample(prompts: Sequence[str], samples: int) -> list[str]:
        return sample_solutions(model, tokenizer, prompts, tokens=WITH_LONG_PROMPTS.longest, samples=samples)

    print(f"| problems | prompt | right steps | {' | '.join(f'pass@{k}' for k in KS)} |")
    print("| --- | --- |" + " ---: |" * (len(KS) + 1))
    for name, unexplained in (("plain", 0), ("hard", UNEXPLAINED_STEPS)):
        problem_set = problems(
            PROBLEMS_SEED, arguments.problems, steps=WITH_LONG_PROMPTS.steps, unexplained=unexplained
        )
        for title, prompts in prompt_variants(problem_set, sample).items():
            cells = " | ".join(f"{value:.3f}" for value in measure(problem_set, prompts, sample).values())
            print(f"| {name} | {title} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
