"""What a row is worth to DRO before training: how much certainty of its answer varies over a group of responses.

Uses the model alone. Chooses no row, and reads and writes no file.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from trainer_client.dro import variance_score
from trainer_client.reasoning import SplitRule, find_answer
from trainer_client.trl._prefilter_rows import BadRows, Row
from trainer_client.trl._reflection import Reflection
from trainer_client.trl._sampler import Sampler


class Outcome(NamedTuple):
    """A row's variance score, or why it has none."""

    score: float | None
    why: Literal["no reference answer", "too long"] | None = None


def prompt_tokens(rows: Sequence[Row], tokenizer: Any) -> list[list[int]]:
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
            raise BadRows(f"{row.place}: prompt has messages, and the model no chat template; give it as text")
        try:
            made = tokenizer.apply_chat_template(
                row.prompt, add_generation_prompt=True, tokenize=True, return_dict=True
            )
        except Exception as error:  # a template is a program, and raises what it likes
            raise BadRows(f"{row.place}: the model's chat template refuses the prompt: {error}") from error
        tokens.append(made["input_ids"])
    return tokens


def score_rows(
    rows: Sequence[Row],
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
) -> Iterator[Outcome]:
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
    sampler = Sampler(
        model, tokenizer, group_size=group_size, max_tokens=max_tokens, temperature=temperature, top_p=top_p
    )
    room = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    for start in range(0, len(rows), batch):
        places = range(start, min(start + batch, len(rows)))
        given = {place: _given(rows[place], tokenizer) for place in places}
        references = {place: reflection.reference_tokens(rows[place].reference) for place in places}
        longest = {place: max(map(len, ids)) if ids else max_tokens for place, ids in given.items()}
        long = {
            place
            for place in places
            if room is not None and len(prompts[place]) + longest[place] + len(references[place]) > room
        }
        asked = [place for place in places if references[place] and place not in long and not given[place]]
        if asked:
            given |= dict(zip(asked, sampler.sample([prompts[place] for place in asked]), strict=True))
        for place in places:
            if not references[place]:
                yield Outcome(None, "no reference answer")
            elif place in long:
                yield Outcome(None, "too long")
            else:
                found = reflection.after(model, prompts[place], given[place], references[place])
                yield Outcome(variance_score([one.certainty for one in found], **clip))


def _given(row: Row, tokenizer: Any) -> list[list[int]]:
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in row.responses or ()]
