"""The policy: a tokenizer and a tiny causal model made on the spot, taught by solutions with mistakes in them.

`python -m examples.learning.policy` teaches one, keeps it, and says how often it is right and how fast it writes.
Neither rewards nor reinforcement are known here.
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
from examples.learning.lessons import KINDS, Lesson, sentences
from examples.learning.rubrics import answer_is_right, step_accuracy
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHARACTERS = "\n ()*+-0123456789:=?#Step\\boxed{}"
PIECES = ("### Step ", ": ", "\\boxed{")
"""What every solution says over and over: one token each, so that solutions are short."""
WORDS = ("@", ".", "- Step ", " is ", "- The answer is right.")
"""What a policy that reads knows beside them, and beside the sentences of prompts."""

CACHE = Path(".cache/learning")
NOT_LEARNED = -100
UNEXPLAINED = 3
"""In how many steps of a hard problem nobody has explained the sign."""
LONGEST_READ = 256


@dataclass(frozen=True)
class Teaching:
    """What a policy is made and taught by; equal settings make the same policy.

    Attributes:
        seed: of the model and of what it is shown.
        steps: how many a problem has.
        mistake_rate: how probably each step of a solution that it is shown goes wrong.
        unanswered: how probably such a solution ends without an answer.
        unexplained: the share of hard problems.
        shares: how often each of `lessons.KINDS` is shown; a policy that is shown others than plain ones can read.
        after: how it was taught before.
        updates, batch_size, learning_rate: of teaching.
        width, layers: of the model; those of the teaching before, if there was one.
    """

    seed: int = 0
    steps: int = 4
    mistake_rate: float = 0.15
    unanswered: float = 0.0
    unexplained: float = 0.0
    shares: tuple[float, float, float] = (1.0, 0.0, 0.0)
    after: "Teaching | None" = None
    updates: int = 1000
    batch_size: int = 32
    learning_rate: float = 5e-3
    width: int = 96
    layers: int = 2

    @property
    def longest(self) -> int:
        """The most tokens that a solution takes, with its end."""
        repeated = "=49\n" if self.unanswered else ""
        return self.steps * (len(": 49*9=49\n") + 1) + len(repeated + "{49}") + 1

    @property
    def name(self) -> str:
        """A name that other settings do not have."""
        return "policy-" + sha256(repr(asdict(self)).encode()).hexdigest()[:12]


PLAIN = Teaching()
"""Solutions to plain questions."""
READING = Teaching(
    after=PLAIN, shares=(0.4, 0.3, 0.3), unexplained=0.5, unanswered=0.25, updates=1500, learning_rate=3e-3
)
"""And then longer prompts, the sign that nobody has explained, and that one need not answer."""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Make the tokenizer: a token for each character and each of `PIECES`. It pads on the left."""
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted({letter for text, _ in letters.pre_tokenize_str(CHARACTERS) for letter in text})
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = letters
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in PIECES])
    ends = {"eos_token": "<eos>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **ends)


def make_model(teaching: Teaching, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Make a model that knows nothing yet; about a quarter of a million parameters."""
    torch.manual_seed(teaching.seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=teaching.width,
        intermediate_size=3 * teaching.width,
        num_hidden_layers=teaching.layers,
        num_attention_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def able_to_read(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Give a policy the words of longer prompts, a token each; what they mean is still to be taught."""
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in (*WORDS, *sentences())])
    torch.manual_seed(seed)
    model.resize_token_embeddings(len(tokenizer))
    model.config.max_position_embeddings = LONGEST_READ
    return model, tokenizer


def teach(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, teaching: Teaching) -> float:
    """Teach a model to write solutions as people do, some of them wrong; give its last loss, in nats a token."""
    rng = np.random.default_rng(teaching.seed)
    optimizer = torch.optim.AdamW(model.parameters(), teaching.learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, teaching.learning_rate, total_steps=teaching.updates, pct_start=0.1
    )
    model.train()
    loss = torch.tensor(torch.nan)
    for update in tqdm(range(teaching.updates), "teaching", unit="updates", disable=teaching.updates < 100):
        kind = KINDS[0] if teaching.after is None else KINDS[int(rng.choice(len(KINDS), p=teaching.shares))]
        hard = teaching.unexplained > 0 and rng.random() < teaching.unexplained
        shown = problems(
            teaching.seed + 1 + update, teaching.batch_size, steps=teaching.steps, unexplained=UNEXPLAINED * hard
        )
        lessons = [kind(problem, rng, teaching.mistake_rate, teaching.unanswered) for problem in shown]
        ids, labels = _batch(tokenizer, lessons)
        logits = model(input_ids=ids).logits[:, :-1]
        loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=NOT_LEARNED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()
    return loss.item()


def taught(teaching: Teaching, cache: Path = CACHE) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Give a policy that was taught so, from the cache if it was taught before."""
    folder = cache / teaching.name
    if not folder.exists():
        if teaching.after is None:
            tokenizer = make_tokenizer()
            model = make_model(teaching, tokenizer)
        else:
            model, tokenizer = able_to_read(*taught(teaching.after, cache), teaching.seed)
        teach(model, tokenizer, teaching)
        unfinished = folder.with_suffix(".unfinished")
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        unfinished.rename(folder)
    return AutoModelForCausalLM.from_pretrained(folder), PreTrainedTokenizerFast.from_pretrained(folder)


@torch.no_grad()
def write(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    asked: Sequence[str],
    *,
    tokens: int,
    samples: int = 1,
) -> list[str]:
    """Sample solutions of at most this many tokens at temperature 1, `samples` consecutive ones to a prompt."""
    prompts = [prompt for prompt in asked for _ in range(samples)]
    given = tokenizer(prompts, padding=True, return_tensors="pt", return_token_type_ids=False)
    written = model.generate(
        **given, max_new_tokens=tokens, do_sample=True, temperature=1.0, top_k=0, pad_token_id=tokenizer.pad_token_id
    )
    return tokenizer.batch_decode(written[:, given["input_ids"].shape[1] :], skip_special_tokens=True)


def _batch(tokenizer: PreTrainedTokenizerFast, lessons: Sequence[Lesson]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and labels of prompts with their solutions, B x T each; only solutions and their ends are learned."""
    questions = tokenizer([lesson.prompt for lesson in lessons])["input_ids"]
    answers = tokenizer([lesson.answer + tokenizer.eos_token for lesson in lessons])["input_ids"]
    length = max(len(question) + len(answer) for question, answer in zip(questions, answers, strict=True))
    ids = torch.full((len(questions), length), tokenizer.pad_token_id)
    labels = torch.full_like(ids, NOT_LEARNED)
    for row, (question, answer) in enumerate(zip(questions, answers, strict=True)):
        end = len(question) + len(answer)
        ids[row, :end] = torch.tensor(question + answer)
        labels[row, len(question) : end] = torch.tensor(answer)
    return ids, labels


def main() -> None:
    """Teach a policy and measure it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (2)")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"where policies are kept ({CACHE})")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    teaching = PLAIN
    began = time.perf_counter()
    model, tokenizer = taught(teaching, options.cache)
    print(f"{model.num_parameters()} parameters, ready after {time.perf_counter() - began:.1f} s")
    asked = problems(-1 % 2**32, 64, steps=teaching.steps)
    began = time.perf_counter()
    texts = write(model, tokenizer, [problem.prompt for problem in asked], tokens=teaching.longest, samples=8)
    seconds = time.perf_counter() - began
    pairs = list(zip([problem for problem in asked for _ in range(8)], texts, strict=True))
    right, steps = ([measure(*pair) for pair in pairs] for measure in (answer_is_right, step_accuracy))
    print(f"{np.mean(right):.1%} of answers and {np.mean(steps):.1%} of steps are right")
    print(f"64 x 8 solutions in {seconds:.2f} s, for example:\n{asked[0].prompt}{texts[0]}")


if __name__ == "__main__":
    main()
