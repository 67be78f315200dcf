"""`python -m trainer_client.trl.prefilter`: choose the rows that DRO trains on.

`python -m trainer_client.trl.prefilter`: choose the rows that DRO trains on, before it trains (its section 5.5).

For each row the model writes a group of responses, and says how probable it finds the reference answer after each. A
group's score is how much these certainties vary (`trainer_client.dro.variance_score`). The rows with the highest
scores are kept, and some of the others at random, so that hard ones stay. No judge is asked.

A row of the data is a JSON object with `prompt` (text or messages), `reference_answer` and, where responses were
sampled elsewhere, `responses` (texts). Kept rows are written as they stand, in their order.

The rows that the prefilter reads: JSON lines, each checked before any model is loaded.

What a row is worth to DRO before training: how much certainty of its answer varies over a group of responses.

Uses the model alone. Chooses no row, and reads and writes no file.

Samples groups of responses with transformers alone, where there is no trainer: tokens in, tokens out.
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
from trainer_client.reasoning import SplitRule, find_answer
from trainer_client.trl._certainty import Reflection

MIN_RESPONSES = 2
"""Of a group: one alone varies in nothing."""

_MAX_PROBLEMS_SHOWN = 10


class InvalidRows(ValueError):
    """Lines that are no rows; its text names each file, line and fault."""


@dataclass(frozen=True, slots=True)
class PrefilterRow:
    """A row of the data.

    Attributes:
        place: the file and the number of its line, for messages.
        number: of its line, from 1.
        line: as it stands in the file, without its end.
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
    """Read all rows of a file; blank lines are passed over.

    Raises:
        BadRows: a line is none.
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
        raise ValueError(f"this is no JSON: {error}") from error
    if not isinstance(given, Mapping):
        raise ValueError("this is no row; write an object with prompt and reference_answer")
    wrong = next(_row_problems(given), None)
    if wrong is not None:
        raise ValueError(wrong)
    responses = given.get("responses")
    reference = given.get("reference_answer")
    return PrefilterRow(
        place, number, line, given["prompt"], reference, None if responses is None else tuple(responses)
    )


def _row_problems(given: Mapping[str, Any]) -> Iterator[str]:
    if not _is_prompt(given.get("prompt")):
        yield "prompt must be text that is not empty, or a list of messages with role and content"
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
    """A model that writes G responses to each prompt, as TRL's trainer has it do with the same settings.

    Args:
        model: a causal language model of transformers.
        tokenizer: its tokenizer.
        group_size: G.
        max_tokens: the longest response, in tokens.
        temperature: above 0.
        top_p: the mass of the likeliest tokens that are sampled from; 1 for all.
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
        self._model = model
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
            n groups of G lists of tokens, each up to and with the first token that ends it.
        """
        longest = max(map(len, prompts))
        gaps = [longest - len(ids) for ids in prompts]
        ids = [[self._pad] * gap + list(own) for gap, own in zip(gaps, prompts, strict=True)]
        mask = [[0] * gap + [1] * len(own) for gap, own in zip(gaps, prompts, strict=True)]
        device = self._model.device
        with torch.no_grad():
            generated = self._model.generate(
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
    """Give each row's prompt in tokens, as TRL's trainer makes them.

    Raises:
        BadRows: the model has no chat template for messages, or its template refuses some.
    """
    tokens: list[list[int]] = []
    for row in rows:
        if isinstance(row.prompt, str):
            tokens.append(tokenizer(text=row.prompt)["input_ids"])
            continue
        if tokenizer.chat_template is None:
            raise InvalidRows(f"{row.place}: prompt has messages, and the model no chat template; give it as text")
        try:
            made = tokenizer.apply_chat_template(
                row.prompt, add_generation_prompt=True, tokenize=True, return_dict=True
            )
        except Exception as error:  # a template is a program, and raises what it likes
            raise InvalidRows(f"{row.place}: the model's chat template refuses the prompt: {error}") from error
        tokens.append(made["input_ids"])
    return tokens


def score_rows(
    rows: Sequence[PrefilterRow],
    prompts: Sequence[Sequence[int]],
    model: Any,
    tokenizer: Any,
    *,
    group_size: int = 16,
    max_tokens: int = 512,
    temperature: float = 1.0,
    top_p: float = 0.95,
    rule: SplitRule = find_answer,
    batch: int = 4,
    **clip: float,
) -> Iterator[RowScore]:
    """Score N rows, in order, as they are done.

    Args:
        rows: what to score; one without a reference answer, or that does not fit the model, has no score.
        prompts: their prompts in tokens.
        model, tokenizer: the policy before training.
        group_size: G, how many responses are sampled to a row without any.
        max_tokens: their greatest length.
        temperature, top_p: of sampling.
        rule: where in a response its answer begins; see `trainer_client.reasoning`.
        batch: how many rows are sampled at once.
        clip: of `variance_score`.
    """
    reflection = Reflection(tokenizer, rule)
    sampler = TransformersSampler(
        model, tokenizer, group_size=group_size, max_tokens=max_tokens, temperature=temperature, top_p=top_p
    )
    room = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    for start in range(0, len(rows), batch):
        places = range(start, min(start + batch, len(rows)))
        given = {place: _tokenize_responses(rows[place], tokenizer) for place in places}
        references = {place: reflection.reference_tokens(rows[place].reference) for place in places}
        longest = {place: max(map(len, ids)) if ids else max_tokens for place, ids in given.items()}
        long = {
            place
            for place in places
            if room is not None and len(prompts[place]) + longest[place] + len(references[place]) > room
        }
        to_sample = [place for place in places if references[place] and place not in long and not given[place]]
        if to_sample:
            given |= dict(zip(to_sample, sampler.sample([prompts[place] for place in to_sample]), strict=True))
        for place in places:
            if not references[place]:
                yield RowScore(None, "no reference answer")
            elif place in long:
                yield RowScore(None, "too long")
            else:
                found = reflection.measure_certainty(model, prompts[place], given[place], references[place])
                yield RowScore(variance_score([one.certainty for one in found], **clip))


def _tokenize_responses(row: PrefilterRow, tokenizer: Any) -> list[list[int]]:
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in row.responses or ()]


_PROGRESS_BAR_DELAY_S = 2.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = _parser()
    given = parser.parse_args(arguments)
    clip = {"top_fraction": given.tokens, "p_min": given.p_min, "p_max": given.p_max}
    try:
        shares = {"top_fraction": _top_share(given), "random_fraction": given.random, "seed": given.seed}
        rule = answer_rule(given.answer_rule)
        select_groups([], **shares)  # what is out of range is said before the long run
        variance_score([[0.5], [0.5]], **clip)
        _check_files(given)
        rows = read_prefilter_rows(given.data)
        tokenizer = _load(AutoTokenizer.from_pretrained, given.model)
        prompts = prompt_tokens(rows, tokenizer)
        model = _load(create_model_from_path, given.model, dtype="auto").eval()
    except (ValueError, OSError) as error:
        parser.exit(1, f"{error}\n")
    set_seed(given.seed)
    sampling = {"group_size": given.group, "max_tokens": given.max_tokens, "temperature": given.temperature}
    sampling["top_p"] = given.top_p
    scored = score_rows(rows, prompts, model, tokenizer, **sampling, rule=rule, batch=given.batch, **clip)
    bar = tqdm(scored, total=len(rows), unit="row", desc="scoring", delay=_PROGRESS_BAR_DELAY_S)
    row_scores = list(bar)
    scores = [row_score.score for row_score in row_scores]
    kept = select_groups(scores, **shares)
    best = set(select_groups(scores, **shares | {"random_fraction": 0.0}))
    given.out.write_bytes(b"".join(rows[place].line + b"\n" for place in kept))
    if given.scores is not None:
        _write_scores(given.scores, rows, row_scores, best, set(kept))
    print(_summary(row_scores, best, kept, given.out))


def _top_share(given: argparse.Namespace) -> float:
    """The share to keep for its score: as given, or what retains a share in all beside the random ones."""
    if given.retain is None:
        return float(given.top)
    if not 0.0 <= given.random < 1.0:
        raise ValueError(f"--random is {given.random:g}; with --retain it is a share from 0 to less than 1")
    if not given.random <= given.retain <= 1.0:
        raise ValueError(
            f"--retain is {given.retain:g}; the random share alone retains {given.random:g}, so give that to 1"
        )
    return float((given.retain - given.random) / (1.0 - given.random))


def answer_rule(name: str | None) -> SplitRule:
    """The function that a name of the form MODULE:FUNCTION stands for; the method's default for None.

    Raises:
        ValueError: there is none of that name.
    """
    if name is None:
        return find_answer
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"--answer-rule {name}: {error}; write MODULE:FUNCTION of a module that can be imported"
        ) from error
    if not callable(found):
        raise ValueError(f"--answer-rule {name}: {function} is not a function")
    rule: SplitRule = found
    return rule


def _load(load: Callable[..., Any], model: str, **how: Any) -> Any:
    try:
        return load(model, **how)
    except (ValueError, OSError) as error:
        raise ValueError(f"--model {model}: {error}") from error


def _write_scores(
    file: Path, rows: Sequence[PrefilterRow], row_scores: Sequence[RowScore], best: set[int], kept: set[int]
) -> None:
    with file.open("w", encoding="utf-8") as lines:
        for place, (row, row_score) in enumerate(zip(rows, row_scores, strict=True)):
            reason = "score" if place in best else "random" if place in kept else None
            lines.write(json.dumps({"line": row.number, **row_score._asdict(), "kept": reason}) + "\n")


def _summary(row_scores: Sequence[RowScore], best: set[int], kept: Sequence[int], out: Path) -> str:
    """Say how many of how many were kept, and why."""
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
            raise ValueError(f"--{name}: there is no folder {path.parent}")
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
    add("--data", required=True, type=Path, help="rows as JSON lines")
    add("--out", required=True, type=Path, help="where the kept rows go")
    share = parser.add_mutually_exclusive_group(required=True)
    share.add_argument("--top", type=float, help="share of the rows to keep for their score")
    share.add_argument(
        "--retain",
        type=float,
        metavar="SHARE",
        help="share to keep in all, the random ones included (paper: 0.18, 0.16, 0.125, which is --top 0.089, 0.067, "
        "0.028)",
    )
    add("--random", type=float, default=0.1, help="share of the others to keep at random (paper: 0.1)")
    add("--seed", type=int, default=0, help="of sampling and of the random share (0)")
    add("--group", type=_at_least(2), default=16, metavar="G", help="responses sampled to a row (16, as in training)")
    add("--max-tokens", type=_at_least(1), default=512, metavar="N", help="longest response, in tokens (512)")
    add("--temperature", type=_positive, default=1.0, help="of sampling (1)")
    add("--top-p", type=_fraction, default=0.95, metavar="P", help="mass that is sampled from (0.95, as in training)")
    add("--answer-rule", metavar="MODULE:FUNCTION", help="where an answer begins: the `answer_rule` of training")
    add("--batch", type=_at_least(1), default=4, metavar="N", help="rows sampled at once, G responses each (4)")
    add("--tokens", type=float, default=0.1, help="share of the reference's tokens that a score is taken of (0.1)")
    add("--p-min", type=float, default=0.05, help="probabilities below count as this (0.05)")
    add("--p-max", type=float, default=0.95, help="probabilities above count as this (0.95)")
    add("--scores", type=Path, metavar="FILE", help="write each row's score, as JSON lines")
    return parser


def _at_least(least: int) -> Any:
    def read(text: str) -> int:
        if (number := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{number} is too few; give {least} or more")
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
