"""`python -m trainer_client.trl.prefilter`: choose the rows that DRO trains on, before it trains (its section 5.5).

For each row the model writes a group of responses, and says how probable it finds the reference answer after each. A
group's score is how much these certainties vary (`trainer_client.dro.variance_score`). The rows with the highest
scores are kept, and some of the others at random, so that hard ones stay. No judge is asked.

A row of the data is a JSON object with `prompt` (text or messages), `reference_answer` and, where responses were
sampled elsewhere, `responses` (texts). Kept rows are written as they stand, in their order.
"""

import argparse
import importlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm  # type: ignore[import-untyped]
from transformers import AutoTokenizer, set_seed
from trl.trainer.utils import create_model_from_path

from trainer_client._variance_filter import select_groups
from trainer_client.dro import variance_score
from trainer_client.reasoning import SplitRule, find_answer
from trainer_client.trl._prefilter_rows import PrefilterRow, read_prefilter_rows
from trainer_client.trl._prefilter_scores import RowScore, prompt_tokens, score_rows

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
