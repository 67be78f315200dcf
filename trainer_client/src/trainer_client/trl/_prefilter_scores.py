"""What a row is worth to DRO before training: how much certainty of its answer varies over a group of responses.

Uses the model alone. Chooses no row, and reads and writes no file.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from trainer_client.dro import variance_score
from trainer_client.reasoning import SplitRule, find_answer
from trainer_client.trl._prefilter_rows import InvalidRows, PrefilterRow
from trainer_client.trl._reflection import Reflection
from trainer_client.trl._sampler import TransformersSampler


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
