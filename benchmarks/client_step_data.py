"""Synthetic data of one training step, as in TRL's trainer: prompts, sampled tokens, texts, a rubric."""

import random
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

KINDS = ("suggest", "pitfall", "bonus")
STEPS = 8
_WORDS = 4000
_LETTERS = "etaoinshrdlucmfwypvbgk"


@dataclass(frozen=True)
class Step:
    """The arguments of a reward function, in rows, and the tokenizer of the tokens."""

    tokenizer: PreTrainedTokenizerFast
    prompts: list[str]
    completions: list[str]
    completion_ids: list[list[int]]
    columns: dict[str, list[Any]]
    group_size: int

    @property
    def rows(self) -> int:
        """The number of responses."""
        return len(self.completions)


def make_step(prompts: int, group_size: int, tokens: int, criteria: int, seed: int = 0) -> Step:
    """Generate a step whose responses are solutions in steps that end with EOS after about `tokens` tokens."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(_LETTERS, k=draw.choice((2, 3, 4, 5, 6, 8)))) for _ in range(_WORDS)]
    tokenizer = _tokenizer(" ".join(draw.choices(words, k=100_000)))
    texts, ids = [], []
    for _ in range(prompts * group_size):
        text = _solution(draw, words, tokens)
        own = tokenizer(text)["input_ids"][: tokens - 1]
        texts.append(tokenizer.decode(own))
        ids.append([*own, tokenizer.eos_token_id])
    rubric = [
        {
            "id": f"c{number}",
            "kind": KINDS[number % len(KINDS)],
            "description": f"The response carries out part {number} of the argument and says why it holds.",
        }
        for number in range(criteria - 1)
    ]
    rubric.append({"id": "answer", "kind": "answer", "description": "The answer is 14."})
    questions = [f"Problem {number}: {' '.join(draw.choices(words, k=60))}?" for number in range(prompts)]
    rows = [question for question in questions for _ in range(group_size)]
    columns: dict[str, list[Any]] = {"rubric": [rubric] * len(rows), "ground_truth": ["14"] * len(rows)}
    return Step(tokenizer, rows, texts, ids, columns, group_size)


def _solution(draw: random.Random, words: list[str], tokens: int) -> str:
    each = tokens // STEPS  # a word is a token or more
    steps = (f"### Step {number}: {' '.join(draw.choices(words, k=each))}." for number in range(1, STEPS + 1))
    return "\n".join(steps)


def _tokenizer(text: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        [text], trainers.BpeTrainer(vocab_size=8000, show_progress=False, initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")
