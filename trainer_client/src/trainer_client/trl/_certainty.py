"""How probable a frozen model finds a reference answer after each rollout's reasoning, token by token.

The answer's own tokens are put after the reasoning's own tokens, so that nothing is tokenised twice; the prompt is
computed once for all rollouts of a group.
"""

from collections.abc import Sequence
from typing import Any

import torch


def reference_probabilities(
    model: Any, prompt: Sequence[int], reasonings: Sequence[Sequence[int]], answer: Sequence[int], pad: int
) -> torch.Tensor:
    """Compute p_ij = pi(y_j | x, c_i, y_<j) for n rollouts of one prompt.

    Args:
        model: a causal language model of transformers.
        prompt: the tokens of x, at least one.
        reasonings: n lists of tokens c_i; they may be empty.
        answer: the T tokens of y, at least one.
        pad: a token to fill up with.

    Returns:
        n x T probabilities, in float32.
    """
    device = model.device
    longest = max(len(reasoning) for reasoning in reasonings)
    rows, gaps = [], []
    for reasoning in reasonings:
        gap = longest - len(reasoning)
        rows.append([pad] * gap + [prompt[-1], *reasoning, *answer[:-1]])
        gaps.append(gap)
    ids = torch.tensor(rows, device=device)
    own = torch.ones_like(ids)
    for row, gap in enumerate(gaps):
        own[row, :gap] = 0
    shared = torch.ones(len(rows), len(prompt) - 1, dtype=own.dtype, device=device)
    mask = torch.cat([shared, own], dim=1)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, len(prompt) - 1 :]
    with torch.no_grad():
        cache = None
        if len(prompt) > 1:
            cache = model(input_ids=torch.tensor([prompt[:-1]], device=device), use_cache=True).past_key_values
            cache.batch_repeat_interleave(len(rows))
        logits = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
            logits_to_keep=len(answer),
        ).logits
    wanted = torch.tensor(answer, device=device).expand(len(rows), -1).unsqueeze(2)
    return logits.float().softmax(dim=-1).gather(2, wanted).squeeze(2)
