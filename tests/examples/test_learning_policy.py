"""The learning example's policy: a tokenizer that loses nothing, and a model that learns and is kept."""

from pathlib import Path

import numpy as np
import pytest
import torch
from examples.learning.arithmetic import problems, solution
from examples.learning.policy import Teaching, make_model, make_tokenizer, taught, teach, write

pytestmark = pytest.mark.trl

BRIEF = Teaching(updates=20, batch_size=8, width=32, layers=1)


def test_prompts_and_solutions_come_back_from_their_tokens_and_fit_in_the_longest() -> None:
    tokenizer, rng = make_tokenizer(), np.random.default_rng(0)
    for problem in problems(0, 300, steps=BRIEF.steps):
        text = solution(problem, rng, 0.3)
        ids = tokenizer(text + tokenizer.eos_token)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        assert len(ids) <= BRIEF.longest
        assert tokenizer.decode(tokenizer(problem.prompt)["input_ids"]) == problem.prompt


def test_prompts_are_padded_on_the_left() -> None:
    tokenizer = make_tokenizer()
    short, long = tokenizer(["1+2=?\n", "(1+2)*3=?\n"], padding=True)["input_ids"]
    assert (short[0], short[-1]) == (tokenizer.pad_token_id, long[-1])
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


def test_what_every_solution_says_takes_one_token_each() -> None:
    tokenizer = make_tokenizer()
    assert tokenizer.tokenize("### Step 1: 3") == ["### Step ", "1", ": ", "3"]
    assert tokenizer.tokenize("\\boxed{7}") == ["\\boxed{", "7", "}"]


def test_a_model_learns_from_solutions() -> None:
    tokenizer = make_tokenizer()
    untaught = teach(make_model(BRIEF, tokenizer), tokenizer, Teaching(updates=4, batch_size=8, learning_rate=1e-9))
    assert teach(make_model(BRIEF, tokenizer), tokenizer, BRIEF) < untaught


def test_a_policy_is_taught_once_and_then_the_same_from_the_cache(tmp_path: Path) -> None:
    asked = problems(0, 2, steps=BRIEF.steps)
    said = []
    for _ in range(2):
        model, tokenizer = taught(BRIEF, tmp_path)
        torch.manual_seed(0)
        said.append(write(model, tokenizer, asked, tokens=BRIEF.longest, samples=3))
    assert said[0] == said[1]
    assert len(said[0]) == 6
    assert [path.name for path in tmp_path.iterdir()] == [BRIEF.name]
    assert Teaching().name != BRIEF.name
