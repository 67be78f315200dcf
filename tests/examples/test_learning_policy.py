"""The learning example's policy: a lossless tokenizer, and a model that learns and is cached."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from examples.learning.arithmetic import problems
from examples.learning.demonstrations import DEMONSTRATION_KINDS, failed_criteria
from examples.learning.policy import (
    MAX_CONTEXT_LENGTH,
    WITH_LONG_PROMPTS,
    PolicyConfig,
    extend_vocabulary,
    load_or_train_policy,
    make_model,
    make_tokenizer,
    sample_solutions,
    train_supervised,
)
from examples.learning.rubrics import step_accuracy
from examples.learning.solutions import solution

pytestmark = pytest.mark.trl

BRIEF = PolicyConfig(updates=20, batch_size=8, width=32, layers=1)


def test_prompts_and_solutions_survive_tokenization_and_fit_the_maximum_length() -> None:
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


def test_phrases_of_every_solution_take_one_token_each() -> None:
    tokenizer = make_tokenizer()
    assert tokenizer.tokenize("### Step 1: 3") == ["### Step ", "1", ": ", "3"]
    assert tokenizer.tokenize("\\boxed{7}") == ["\\boxed{", "7", "}"]


def test_a_model_learns_from_solutions() -> None:
    tokenizer = make_tokenizer()
    untaught = train_supervised(
        make_model(BRIEF, tokenizer), tokenizer, PolicyConfig(updates=4, batch_size=8, learning_rate=1e-9)
    )
    assert train_supervised(make_model(BRIEF, tokenizer), tokenizer, BRIEF) < untaught


def test_a_policy_is_trained_once_and_then_loaded_from_the_cache(tmp_path: Path) -> None:
    asked = problems(0, 2, steps=BRIEF.steps)
    said = []
    for _ in range(2):
        model, tokenizer = load_or_train_policy(BRIEF, tmp_path)
        torch.manual_seed(0)
        said.append(
            sample_solutions(model, tokenizer, [problem.prompt for problem in asked], tokens=BRIEF.longest, samples=3)
        )
    assert said[0] == said[1]
    assert len(said[0]) == 6
    assert [path.name for path in tmp_path.iterdir()] == [BRIEF.name]
    assert PolicyConfig().name != BRIEF.name


def test_longer_prompts_and_their_answers_survive_tokenization_and_fit() -> None:
    _, tokenizer = extend_vocabulary(make_model(BRIEF, make_tokenizer()), make_tokenizer(), 0)
    rng = np.random.default_rng(0)
    for kind in DEMONSTRATION_KINDS:
        for problem in problems(0, 100, steps=WITH_LONG_PROMPTS.steps, unexplained=3):
            lesson = kind(problem, rng, WITH_LONG_PROMPTS.mistake_rate, WITH_LONG_PROMPTS.unanswered)
            asked, answered = (tokenizer(text)["input_ids"] for text in lesson)
            assert (tokenizer.decode(asked), tokenizer.decode(answered)) == tuple(lesson)
            assert len(answered) < WITH_LONG_PROMPTS.longest
            assert len(asked) + WITH_LONG_PROMPTS.longest <= MAX_CONTEXT_LENGTH


def test_extending_the_vocabulary_keeps_known_tokens() -> None:
    before, after = make_tokenizer(), make_tokenizer()
    model, _ = extend_vocabulary(make_model(BRIEF, after), after, 0)
    text = problems(0, 1)[0].prompt + "### Step 1: 3"
    assert after(text)["input_ids"] == before(text)["input_ids"]
    assert model.get_input_embeddings().weight.shape[0] == len(after) > len(before)


def test_lessons_name_the_failed_criteria_and_answer_with_them_satisfied() -> None:
    rng = np.random.default_rng(0)
    _, scaffolded, refined = DEMONSTRATION_KINDS
    for problem in problems(0, 50, steps=4, unexplained=3):
        lesson = refined(problem, rng, 0.15, 0.25)
        assert step_accuracy(problem, lesson.answer) == 1.0
        previous = lesson.prompt.partition("<previous_answer>\n")[2].partition("\n</previous_answer>")[0]
        lacking = [criterion["description"] for criterion in failed_criteria(problem, previous)]
        assert lacking
        assert [line for line in lesson.prompt.splitlines() if line.startswith("- ")] == [f"- {own}" for own in lacking]
        lines = [f"Step {k} is {line}." for k, line in enumerate(problem.lines, 1)]
        given = scaffolded(problem, rng, 0.15, 0.25)
        shown = [line for line in lines if f"- {line}" in given.prompt]
        share = step_accuracy(problem, given.answer)
        assert share >= len(shown) / 4 or len(given.answer.splitlines()) < 5


def test_a_policy_for_long_prompts_continues_from_one_for_short_prompts(tmp_path: Path) -> None:
    reading = replace(WITH_LONG_PROMPTS, after=BRIEF, updates=6, batch_size=4)
    model, tokenizer = load_or_train_policy(reading, tmp_path)
    assert model.config.max_position_embeddings == MAX_CONTEXT_LENGTH
    assert {path.name for path in tmp_path.iterdir()} == {BRIEF.name, reading.name}
    assert tokenizer.decode(tokenizer("7@5=17")["input_ids"]) == "7@5=17"
    assert len({own.name for own in (PolicyConfig(), reading, BRIEF)}) == 3
