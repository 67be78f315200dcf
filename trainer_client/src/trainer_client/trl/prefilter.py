"""`python -m trainer_client.trl.prefilter`: choose the rows that DRO trains on, before training (its section 5.5).

For each row, the model generates a group of responses and computes the probability of the reference answer after each.
A row's score is how much these certainties vary (`trainer_client.dro.variance_score`). The rows with the highest scores
are kept, and a random share of the others, so that hard rows remain. No judge is needed.

A row of the data is a JSON object with `prompt` (text or messages), `reference_answer` and, if responses were sampled
elsewhere, `responses` (texts). All rows are validated before the model is loaded. Kept rows are written unchanged, in
their order.
"""

import argparse
import importlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from tqdm.auto import tqdm  # type: ignore[import-untyped]
from transformers import AutoTokenizer, GenerationConfig, set_seed
from trl.trainer.utils import create_model_from_path

from trainer_client.dro import select_groups, variance_score
from trainer_client.text.thinking import SplitRule, find_answer
from trainer_client.trl.rollouts.certainty import Reflection

MIN_RESPONSES = 2
"""The smallest group: the score measures how certainty varies between responses."""

_MAX_PROBLEMS_SHOWN = 10


class InvalidRows(ValueError):
    """Some lines are not valid rows. The message names the file, the line and the problem of each."""


@dataclass(frozen=True, slots=True)
class PrefilterRow:
    """A row of the data.

    Attributes:
        place: the file and the line number, for error messages.
        number: the line number, from 1.
        line: the line as it is in the file, without the newline.
        prompt: text, or messages.
        reference: the reference answer, or None.
        responses: texts that were sampled elsewhere, or None.
    """

    place: str
    number: int
    line: bytes
    prompt: Any
    reference: object
    responses: tuple[str, ...] | None


def read_prefilter_rows(file: Path) -> list[PrefilterRow]:
    """Read all rows of a file, skipping blank lines.

    Raises:
        InvalidRows: some lines are not valid rows.
        OSError: the file cannot be read.
    """
    rows: list[PrefilterRow] = []
    problems: list[str] = []
    for number, line in enumerate(file.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        place = f"{file}:{number}"
        try:
            rows.append(_row(place, number, line))
        except (ValueError, RecursionError) as error:
            problems.append(f"{place}: {error}")
    if problems:
        more = [f"and {len(problems) - _MAX_PROBLEMS_SHOWN} more"] if len(problems) > _MAX_PROBLEMS_SHOWN else []
        raise InvalidRows("\n".join(problems[:_MAX_PROBLEMS_SHOWN] + more))
    return rows


def _row(place: str, number: int, line: bytes) -> PrefilterRow:
    try:
        given = json.loads(line)
    except ValueError as error:
        raise ValueError(f"the line is not valid JSON: {error}") from error
    if not isinstance(given, Mapping):
        raise ValueError("the line is not a JSON object; write an object with prompt and reference_answer")
    problem = next(_row_problems(given), None)
    if problem is not None:
        raise ValueError(problem)
    responses = given.get("responses")
    reference = given.get("reference_answer")
    return PrefilterRow(
        place, number, line, given["prompt"], reference, None if responses is None else tuple(responses)
    )


def _row_problems(given: Mapping[str, Any]) -> Iterator[str]:
    if not _is_prompt(given.get("prompt")):
        yield "prompt must be non-empty text, or a list of messages with role and content"
    reference = given.get("reference_answer")
    if isinstance(reference, bool) or not (reference is None or isinstance(reference, str | int | float)):
        yield f"reference_answer is of type {type(reference).__name__}; it must be text or a number"
    responses = given.get("responses")
    if responses is None:
        return
    texts = responses if isinstance(responses, list) and all(isinstance(text, str) for text in responses) else ()
    if len(texts) < MIN_RESPONSES:
        yield f"responses must be a list of at least {MIN_RESPONSES} texts, since their differences are measured"


def _is_prompt(given: object) -> bool:
    if isinstance(given, str):
        return bool(given)
    return (
        isinstance(given, list)
        and bool(given)
        and all(isinstance(message, Mapping) and isinstance(message.get("role"), str) for message in given)
    )


class TransformersSampler:
    """Samples G responses to each prompt with transformers, as TRL's trainer does with the same settings.

    Args:
        model: a causal language model of transformers.
        tokenizer: its tokenizer.
        group_size: G.
        max_tokens: the longest response, in tokens.
        temperature: above 0.
        top_p: the total probability of the most likely tokens to sample from; 1 for all tokens.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        group_size: int,
        max_tokens: int,
        temperature: float,
        top_p: float = 1.0,
    ) -> None:
        declared = model.generation_config.eos_token_id
        stop_token_ids = [declared] if isinstance(declared, int) else list(declared or ())
        self._stop_token_ids = list(
            dict.fromkeys([*stop_token_ids, *(id_ for id_ in [tokenizer.eos_token_id] if id_ is not None)])
        )
        pad = tokenizer.pad_token_id
        self._pad = pad if pad is not None else next(iter(self._stop_token_ids), 0)
        self.model, self.tokenizer, self.max_tokens = model, tokenizer, max_tokens
        self._settings = GenerationConfig(
            do_sample=True,
            max_new_tokens=max_tokens,
            num_return_sequences=group_size,
            temperature=temperature,
            top_p=top_p,
            top_k=0,
            repetition_penalty=1.0,
            eos_token_id=self._stop_token_ids or None,
            pad_token_id=self._pad,
        )
        self._group_size = group_size

    def sample(self, prompts: Sequence[Sequence[int]]) -> list[list[list[int]]]:
        """Sample G responses to each of n prompts, all at once.

        Returns:
            n groups of G lists of tokens, each up to and including its first stop token.
        """
        longest = max(map(len, prompts))
        gaps = [longest - len(ids) for ids in prompts]
        ids = [[self._pad] * gap + list(own) for gap, own in zip(gaps, prompts, strict=True)]
        mask = [[0] * gap + [1] * len(own) for gap, own in zip(gaps, prompts, strict=True)]
        device = self.model.device
        with torch.no_grad():
            generated = self.model.generate(
                input_ids=torch.tensor(ids, device=device),
                attention_mask=torch.tensor(mask, device=device),
                generation_config=self._settings,
            )
        responses = [self._truncate_at_stop(row) for row in generated[:, longest:].tolist()]
        return [responses[at : at + self._group_size] for at in range(0, len(responses), self._group_size)]

    def _truncate_at_stop(self, ids: list[int]) -> list[int]:
        return next((ids[: place + 1] for place, id_ in enumerate(ids) if id_ in self._stop_token_ids), ids)


class RowScore(NamedTuple):
    """A row's variance score, or why it has none."""

    score: float | None
    reason: Literal["no reference answer", "too long"] | None = None


def prompt_tokens(rows: Sequence[PrefilterRow], tokenizer: Any) -> list[list[int]]:
    """Tokenize each row's prompt as TRL's trainer does.

    Raises:
        InvalidRows: the model has no chat template for messages, or its template rejects some.
    """
    tokens: list[list[int]] = []
    for row in rows:
        if isinstance(row.prompt, str):
            tokens.append(tokenizer(text=row.prompt)["input_ids"])
            continue
        if tokenizer.chat_template is None:
            raise InvalidRows(f"{row.place}: prompt has messages, but the model has no chat template; write it as text")
        try:
            encoded = tokenizer.apply_chat_template(
                row.prompt, add_generation_prompt=True, tokenize=True, return_dict=True
            )
        except Exception as error:  # a template is a program that can raise anything
            raise InvalidRows(f"{row.place}: the model's chat template rejects the prompt: {error}") from error
        tokens.append(encoded["input_ids"])
    return tokens


def score_rows(
    rows: Sequence[PrefilterRow],
    prompts: Sequence[Sequence[int]],
    sampler: TransformersSampler,
    *,
    rule: SplitRule = find_answer,
    batch: int = 4,
    **clip: float,
) -> Iterator[RowScore]:
    """Score N rows. Yields the scores in order, as they are computed.

    Args:
        rows: the rows; one without a reference answer, or that does not fit the model, gets no score.
        prompts: the tokens of their prompts.
        sampler: samples from the policy before training, for rows without responses.
        rule: finds where the answer begins in a response; see `trainer_client.text.thinking`.
        batch: the number of rows sampled at once.
        clip: arguments of `variance_score`.
    """
    model, tokenizer, max_tokens = sampler.model, sampler.tokenizer, sampler.max_tokens
    reflection = Reflection(tokenizer, rule)
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    for start in range(0, len(rows), batch):
        places = range(start, min(start + batch, len(rows)))
        responses = {place: _tokenize_responses(rows[place], tokenizer) for place in places}
        references = {place: reflection.reference_tokens(rows[place].reference) for place in places}
        longest = {place: max(map(len, ids)) if ids else max_tokens for place, ids in responses.items()}
        too_long = {
            place
            for place in places
            if context is not None and len(prompts[place]) + longest[place] + len(references[place]) > context
        }
        to_sample = [place for place in places if references[place] and place not in too_long and not responses[place]]
        if to_sample:
            responses |= dict(zip(to_sample, sampler.sample([prompts[place] for place in to_sample]), strict=True))
        for place in places:
            if not references[place]:
                yield RowScore(None, "no reference answer")
            elif place in too_long:
                yield RowScore(None, "too long")
            else:
                results = reflection.measure_certainty(model, prompts[place], responses[place], references[place])
                yield RowScore(variance_score([result.certainty for result in results], **clip))


def _tokenize_responses(row: PrefilterRow, tokenizer: Any) -> list[list[int]]:
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in row.responses or ()]


def main(arguments: Sequence[str] | None = None, *, progress_after_s: float = 2.0) -> None:
    """Run the command, and show its progress if it takes longer than `progress_after_s`."""
    parser = _parser()
    given = parser.parse_args(arguments)
    clip = {"top_fraction": given.tokens, "p_min": given.p_min, "p_max": given.p_max}
    try:
        shares = {"top_fraction": _top_share(given), "random_fraction": given.random, "seed": given.seed}
        rule = answer_rule(given.answer_rule)
        select_groups([], **shares)  # reject values out of range before the long run
        variance_score([[0.5], [0.5]], **clip)
        _check_files(given)
        rows = read_prefilter_rows(given.data)
        tokenizer = _load(AutoTokenizer.from_pretrained, given.model)
        prompts = prompt_tokens(rows, tokenizer)
        model = _load(create_model_from_path, given.model, dtype="auto").eval()
    except (ValueError, OSError) as error:
        parser.exit(1, f"{error}\n")
    set_seed(given.seed)
    sampler = TransformersSampler(
        model,
        tokenizer,
        group_size=given.group,
        max_tokens=given.max_tokens,
        temperature=given.temperature,
        top_p=given.top_p,
    )
    scored = score_rows(rows, prompts, sampler, rule=rule, batch=given.batch, **clip)
    bar = tqdm(scored, total=len(rows), unit="row", desc="scoring", delay=progress_after_s)
    row_scores = list(bar)
    scores = [row_score.score for row_score in row_scores]
    kept = select_groups(scores, **shares)
    best = set(select_groups(scores, **shares | {"random_fraction": 0.0}))
    given.out.write_bytes(b"".join(rows[place].line + b"\n" for place in kept))
    if given.scores is not None:
        _write_scores(given.scores, rows, row_scores, best, set(kept))
    print(_summary(row_scores, best, kept, given.out))


def _top_share(given: argparse.Namespace) -> float:
    """Return the share of rows to keep for their score: `--top`, or computed from `--retain` and `--random`."""
    if given.retain is None:
        return float(given.top)
    if not 0.0 <= given.random < 1.0:
        raise ValueError(f"--random is {given.random:g}; with --retain it must be from 0 to less than 1")
    if not given.random <= given.retain <= 1.0:
        raise ValueError(f"--retain is {given.retain:g}; it must be from {given.random:g}, the random share, to 1")
    return float((given.retain - given.random) / (1.0 - given.random))


def answer_rule(name: str | None) -> SplitRule:
    """Import the function that MODULE:FUNCTION names; None gives the method's default.

    Raises:
        ValueError: the function cannot be imported.
    """
    if name is None:
        return find_answer
    module, _, function = name.partition(":")
    try:
        imported = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"--answer-rule {name}: {error}; write MODULE:FUNCTION, with a module that can be imported"
        ) from error
    if not callable(imported):
        raise ValueError(f"--answer-rule {name}: {function} is not a function")
    rule: SplitRule = imported
    return rule


def _load(load: Callable[..., Any], model: str, **options: Any) -> Any:
    try:
        return load(model, **options)
    except (ValueError, OSError) as error:
        raise ValueError(f"--model {model}: {error}") from error


def _write_scores(
    file: Path, rows: Sequence[PrefilterRow], row_scores: Sequence[RowScore], best: set[int], kept: set[int]
) -> None:
    with file.open("w", encoding="utf-8") as lines:
        for place, (row, row_score) in enumerate(zip(rows, row_scores, strict=True)):
            kept_for = "score" if place in best else "random" if place in kept else None
            line = {"line": row.number, "score": row_score.score, "why": row_score.reason, "kept": kept_for}
            lines.write(json.dumps(line) + "\n")


def _summary(row_scores: Sequence[RowScore], best: set[int], kept: Sequence[int], out: Path) -> str:
    """Summarize how many rows were kept, and why."""
    scores = {place: row_score.score for place, row_score in enumerate(row_scores) if row_score.score is not None}
    lowest = min((scores[place] for place in best), default=None)
    above = "" if lowest is None else f", {lowest:.4g} or more"
    without = Counter(row_score.reason for row_score in row_scores if row_score.reason is not None)
    return (
        f"kept {len(kept)} of {len(row_scores)} rows in {out}: {len(best)} of the {len(scores)} scored ones for their "
        f"score{above}, and {len(kept) - len(best)} of the other {len(scores) - len(best)} at random"
        + "".join(f"; {count} without a score: {reason}" for reason, count in without.items())
    )


def _check_files(given: argparse.Namespace) -> None:
    written: Mapping[str, Path] = {
        name: path.resolve() for name in ("out", "scores") if (path := getattr(given, name)) is not None
    }
    for name, path in written.items():
        if not path.parent.is_dir():
            raise ValueError(f"--{name}: the folder {path.parent} does not exist")
    if len({given.data.resolve(), *written.values()}) <= len(written):
        raise ValueError("--data, --out and --scores must be different files")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer_client.trl.prefilter",
        description=__doc__.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", required=True, help="the policy before training: a folder, or a name on the Hub")
    add("--data", required=True, type=Path, help="file with rows as JSON lines")
    add("--out", required=True, type=Path, help="file for the kept rows")
    share = parser.add_mutually_exclusive_group(required=True)
    share.add_argument("--top", type=float, help="share of the rows to keep for their score")
    share.add_argument(
        "--retain",
        type=float,
        metavar="SHARE",
        help="total share to keep, including the random ones (paper: 0.18, 0.16, 0.125, equal to --top 0.089, 0.067, "
        "0.028)",
    )
    add("--random", type=float, default=0.1, help="share of the others to keep at random (paper: 0.1)")
    add("--seed", type=int, default=0, help="seed of sampling and of the random share (0)")
    add("--group", type=_at_least(2), default=16, metavar="G", help="responses to sample per row (16, as in training)")
    add("--max-tokens", type=_at_least(1), default=512, metavar="N", help="longest response, in tokens (512)")
    add("--temperature", type=_positive, default=1.0, help="sampling temperature (1)")
    add("--top-p", type=_fraction, default=0.95, metavar="P", help="top-p of sampling (0.95, as in training)")
    add("--answer-rule", metavar="MODULE:FUNCTION", help="finds where an answer begins: the `answer_rule` of training")
    add("--batch", type=_at_least(1), default=4, metavar="N", help="rows sampled at once, G responses each (4)")
    add("--tokens", type=float, default=0.1, help="share of the reference answer's tokens in the score (0.1)")
    add("--p-min", type=float, default=0.05, help="lower bound to clip probabilities to (0.05)")
    add("--p-max", type=float, default=0.95, help="upper bound to clip probabilities to (0.95)")
    add("--scores", type=Path, metavar="FILE", help="write each row's score, as JSON lines")
    return parser


def _at_least(least: int) -> Any:
    def read(text: str) -> int:
        if (number := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{number} is too small; give {least} or more")
        return number

    return read


def _fraction(text: str) -> float:
    if not 0 < (number := float(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{number:g} is not above 0 and at most 1")
    return number


def _positive(text: str) -> float:
    if not (number := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"{number:g} is not above 0")
    return number


if __name__ == "__main__":
    main()
