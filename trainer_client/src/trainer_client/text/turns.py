"""Which sampled tokens belong to which turn of a trajectory.

The tokens of a trajectory are what the policy sampled, turn by turn, and between the turns what a template rendered:
the results of tools. Agent loops mark sampled tokens with 1 and all others with 0 (TRL's `tool_mask` and `env_mask`,
verl's `response_mask`). Tokens of tools belong to no turn and to no step, even if they repeat what the policy said.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from trainer_client.steps import Step
from trainer_client.text.offsets import TokenAlignment, TokenOffsets
from trainer_client.text.thinking import JudgedContent, assistant_pieces
from trainer_client.wire.judging import StepRule

__all__ = ["place_trajectory", "sampled_runs", "step_spans", "turn_spans"]

Span = tuple[int, int]


def sampled_runs(mask: Iterable[int]) -> list[Span]:
    """Return the ranges [first, last + 1) of consecutive sampled tokens, given T values of a mask, 1 if sampled."""
    runs: list[Span] = []
    start = None
    length = 0
    for length, sampled in enumerate(mask, 1):
        if sampled and start is None:
            start = length - 1
        elif not sampled and start is not None:
            runs.append((start, length - 1))
            start = None
    return runs if start is None else [*runs, (start, length)]


def turn_spans(tokens: int, mask: Sequence[int] | None, turns: int) -> dict[int, Span] | None:
    """Find the sampled tokens of each turn: {number: [first, last + 1)}.

    Args:
        tokens: T, the number of tokens of the response. Values of the mask after them are padding.
        mask: T values, 1 for a sampled token; None if all of them were sampled.
        turns: the number of messages of role `assistant` in the response.

    Returns:
        The span of each turn; None if the runs of sampled tokens are not as many as the turns, so that nothing tells
        which run is which turn.
    """
    runs = sampled_runs([1] * tokens if mask is None else list(mask)[:tokens])
    return dict(enumerate(runs, 1)) if len(runs) == turns else None


def place_trajectory(
    offsets: TokenOffsets,
    ids: Sequence[int],
    mask: Sequence[int] | None,
    judged: JudgedContent,
    turns: int,
) -> TokenAlignment | None:
    """Find where the sampled tokens of a trajectory begin in its judged text, each turn by itself.

    Args:
        offsets: of the policy's tokenizer.
        ids: T token ids of the response, those of tools included.
        mask: T values, 1 for a sampled token; None if all of them were sampled.
        judged: the judged part of the response, sent as messages.
        turns: the number of messages of role `assistant` in the response.

    Returns:
        The alignment, without the tokens of a turn whose text does not occur in its decoded tokens exactly once; None
        if no token can be placed, or if the runs of sampled tokens are not as many as the turns.

    Raises:
        ValueError: a token id is negative.
    """
    spans = turn_spans(len(ids), mask, turns)
    if spans is None or judged.messages is None:
        return None
    found: list[TokenAlignment] = []
    said = [message for message in judged.messages if message.role == "assistant"]
    for turn, message in zip(judged.turns, said, strict=True):
        first, last = spans[turn.number]
        at = turn.start
        for piece in assistant_pieces(message):
            placed = offsets.place(ids[first:last], piece)
            if placed is not None:
                inside = (placed.starts >= 0) & (placed.starts < len(piece))
                found.append(TokenAlignment(placed.tokens[inside] + first, placed.starts[inside] + at))
            at += len(piece) + len("\n\n")
    if not found:
        return None
    return TokenAlignment(np.concatenate([one.tokens for one in found]), np.concatenate([one.starts for one in found]))


def step_spans(
    rule: StepRule,
    steps: Iterable[Step | tuple[int, int, int]],
    alignment: TokenAlignment | None,
    turns: dict[int, Span] | None,
) -> dict[int, Span] | None:
    """Find the tokens of each step of a response: those of its turn, or those that the alignment places in it.

    Args:
        rule: what the steps are.
        steps: (number, start, end) triples; 0, the whole response, has no tokens of its own.
        alignment: where the tokens begin in the judged text; not needed for `turns`.
        turns: the spans of the turns, for `turns`.

    Returns:
        {number: [first, last + 1)}; None if no step can be located.
    """
    numbered = [(number, start, end) for number, start, end in steps if number]
    if not numbered:
        return {}
    if rule == "turns":
        return None if turns is None else {number: turns[number] for number, _, _ in numbered if number in turns}
    return None if alignment is None else alignment.steps(numbered)
