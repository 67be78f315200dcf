"""The policy: a tokenizer and a tiny causal model, trained from scratch on solutions that contain mistakes.

`python -m examples.learning.policy` trains one, caches it, and prints its accuracy and sampling speed.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from examples.learning.arithmetic import problems
from examples.learning.demonstrations import DEMONSTRATION_KINDS, Demonstration, prompt_sentences
from examples.learning.rubrics import answer_is_right, step_accuracy
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHARACTERS = "\n ()*+-0123456789:=?#Step\\boxed{}"
SOLUTION_TOKENS = ("### Step ", ": ", "\\boxed{")
"""Texts that every solution repeats. Each is one token, to keep solutions short."""
PROMPT_TOKENS = ("@", ".", "- Step ", " is ", "- The answer is right.")
"""Additional tokens of a policy that reads long prompts, besides the sentences of those prompts."""

CACHE = Path(".cache/learning")
IGNORE_INDEX = -100
UNEXPLAINED_STEPS = 3
"""The number of steps of a hard problem with the unexplained operator."""
MAX_CONTEXT_LENGTH = 256


@dataclass(frozen=True)
class PolicyConfig:
    """The settings of a policy and its supervised training; equal settings give the same policy.

    Attributes:
        seed: the seed of the model and of the training data.
        steps: the number of steps of a problem.
        mistake_rate: the probability of a mistake in each step of a demonstration.
        unanswered: the probability that a demonstration ends without an answer.
        unexplained: the share of hard problems.
        shares: the shares of `demonstrations.DEMONSTRATION_KINDS`; with others than plain ones, the policy learns to
            read long prompts.
        after: the settings of a preceding training.
        updates, batch_size, learning_rate: training settings.
        width, layers: the size of the model; ignored after a preceding training, whose size it keeps.
    """

    seed: int = 0
    steps: int = 4
    mistake_rate: float = 0.15
    unanswered: float = 0.0
    unexplained: float = 0.0
    shares: tuple[float, float, float] = (1.0, 0.0, 0.0)
    after: "PolicyConfig | None" = None
    updates: int = 1000
    batch_size: int = 32
    learning_rate: float = 5e-3
    width: int = 96
    layers: int = 2

    @property
    def longest(self) -> int:
        """The largest number of tokens of a solution, including the end token."""
        repeated = "=49\n" if self.unanswered else ""
        return self.steps * (len(": 49*9=49\n") + 1) + len(repeated + "{49}") + 1

    @property
    def name(self) -> str:
        """A name that is unique to these settings."""
        return "policy-" + sha256(repr(asdict(self)).encode()).hexdigest()[:12]


PLAIN = PolicyConfig()
"""Trained on solutions to plain questions."""
WITH_LONG_PROMPTS = PolicyConfig(
    after=PLAIN, shares=(0.4, 0.3, 0.3), unexplained=0.5, unanswered=0.25, updates=1500, learning_rate=3e-3
)
"""Trained further on longer prompts, the unexplained operator, and solutions without an answer."""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Create the tokenizer: a token for each character and each of `SOLUTION_TOKENS`, with left padding."""
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted({letter for text, _ in letters.pre_tokenize_str(CHARACTERS) for letter in text})
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = letters
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in SOLUTION_TOKENS])
    ends = {"eos_token": "<eos>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **ends)


def make_model(policy_config: PolicyConfig, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Create an untrained model with about 250,000 parameters."""
    torch.manual_seed(policy_config.seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=policy_config.width,
        intermediate_size=3 * policy_config.width,
        num_hidden_layers=policy_config.layers,
        num_attention_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def extend_vocabulary(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Add one untrained token for each word of longer prompts."""
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in (*PROMPT_TOKENS, *prompt_sentences())])
    torch.manual_seed(seed)
    model.resize_token_embeddings(len(tokenizer))
    model.config.max_position_embeddings = MAX_CONTEXT_LENGTH
    return model, tokenizer


def train_supervised(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, policy_config: PolicyConfig) -> float:
    """Train a model on demonstrations, some of them wrong, and return its last loss, in nats per token."""
    rng = np.random.default_rng(policy_config.seed)
    optimizer = torch.optim.AdamW(model.parameters(), policy_config.learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, policy_config.learning_rate, total_steps=policy_config.updates, pct_start=0.1
    )
    model.train()
    loss = torch.tensor(torch.nan)
    for update in tqdm(range(policy_config.updates), "teaching", unit="updates", disable=policy_config.updates < 100):
        kind = (
            DEMONSTRATION_KINDS[0]
            if policy_config.after is None
            else DEMONSTRATION_KINDS[int(rng.choice(len(DEMONSTRATION_KINDS), p=policy_config.shares))]
        )
        hard = policy_config.unexplained > 0 and rng.random() < policy_config.unexplained
        shown = problems(
            policy_config.seed + 1 + update,
            policy_config.batch_size,
            steps=policy_config.steps,
            unexplained=UNEXPLAINED_STEPS * hard,
        )
        demonstrations = [kind(problem, rng, policy_config.mistake_rate, policy_config.unanswered) for problem in shown]
        ids, labels = _batch(tokenizer, demonstrations)
        logits = model(input_ids=ids).logits[:, :-1]
        loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORE_INDEX)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()
    return loss.item()


def load_or_train_policy(
    policy_config: PolicyConfig, cache: Path = CACHE
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Return the trained policy with these settings, from the cache if it exists."""
    folder = cache / policy_config.name
    if not folder.exists():
        if policy_config.after is None:
            tokenizer = make_tokenizer()
            model = make_model(policy_config, tokenizer)
        else:
            model, tokenizer = extend_vocabulary(*load_or_train_policy(policy_config.after, cache), policy_config.seed)
        train_supervised(model, tokenizer, policy_config)
        unfinished = folder.with_suffix(".unfinished")
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        unfinished.rename(folder)
    return AutoModelForCausalLM.from_pretrained(folder), PreTrainedTokenizerFast.from_pretrained(folder)


@torch.no_grad()
def sample_solutions(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    queries: Sequence[str],
    *,
    tokens: int,
    samples: int = 1,
) -> list[str]:
    """Sample solutions of at most `tokens` tokens at temperature 1, `samples` consecutive ones per prompt."""
    prompts = [prompt for prompt in queries for _ in range(samples)]
    given = tokenizer(prompts, padding=True, return_tensors="pt", return_token_type_ids=False)
    generated = model.generate(
        **given, max_new_tokens=tokens, do_sample=True, temperature=1.0, top_k=0, pad_token_id=tokenizer.pad_token_id
    )
    return tokenizer.batch_decode(generated[:, given["input_ids"].shape[1] :], skip_special_tokens=True)


def _batch(
    tokenizer: PreTrainedTokenizerFast, demonstrations: Sequence[Demonstration]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and labels, B x T each; only solutions and their end tokens have labels."""
    questions = tokenizer([demonstration.prompt for demonstration in demonstrations])["input_ids"]
    answers = tokenizer([demonstration.answer + tokenizer.eos_token for demonstration in demonstrations])["input_ids"]
    length = max(len(question) + len(answer) for question, answer in zip(questions, answers, strict=True))
    ids = torch.full((len(questions), length), tokenizer.pad_token_id)
    labels = torch.full_like(ids, IGNORE_INDEX)
    for row, (question, answer) in enumerate(zip(questions, answers, strict=True)):
        end = len(question) + len(answer)
        ids[row, :end] = torch.tensor(question + answer)
        labels[row, len(question) : end] = torch.tensor(answer)
    return ids, labels


def main() -> None:
    """Train a policy and measure it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2, help="number of torch threads (2)")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"folder for policies ({CACHE})")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    policy_config = PLAIN
    began = time.perf_counter()
    model, tokenizer = load_or_train_policy(policy_config, options.cache)
    print(f"{model.num_parameters()} parameters, ready after {time.perf_counter() - began:.1f} s")
    queries = problems(-1 % 2**32, 64, steps=policy_config.steps)
    began = time.perf_counter()
    texts = sample_solutions(
        model, tokenizer, [problem.prompt for problem in queries], tokens=policy_config.longest, samples=8
    )
    seconds = time.perf_counter() - began
    pairs = list(zip([problem for problem in queries for _ in range(8)], texts, strict=True))
    right, steps = ([measure(*pair) for pair in pairs] for measure in (answer_is_right, step_accuracy))
    print(f"{np.mean(right):.1%} of answers and {np.mean(steps):.1%} of steps are right")
    print(f"64 x 8 solutions in {seconds:.2f} s, for example:\n{queries[0].prompt}{texts[0]}")


if __name__ == "__main__":
    main()
