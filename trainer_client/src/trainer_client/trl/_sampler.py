"""Samples groups of responses with transformers alone, where there is no trainer: tokens in, tokens out."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig


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
