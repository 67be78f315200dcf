"""Samples that are generated from prompts of their own, and trained on the plain ones.

TRL generates a whole group from its first prompt where a vLLM server does it, so here each sample is a group of one to
the generator. What it generated from is kept until the loss knows what to compare with.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch
from trl.trainer.utils import pad

from trainer_client.trl.methods.base import SampleRequest, TrainingProgress
from trainer_client.wire import Criterion


def sample_requests(
    prompts: Sequence[Any], criteria: Sequence[tuple[Criterion, ...]], first: int, group_size: int
) -> list[SampleRequest]:
    """Say which sample of which group each row is.

    Args:
        prompts, criteria: of the rows of this rank.
        first: the place of the first of them among the rows of all ranks.
        group_size: G.
    """
    return [
        SampleRequest(prompt, prompt_id(prompt), own, (first + row) % group_size + 1, group_size)
        for row, (prompt, own) in enumerate(zip(prompts, criteria, strict=True))
    ]


def prompt_id(prompt: Any) -> str:
    """Name a prompt by what is in it."""
    return hashlib.sha256(json.dumps(prompt, sort_keys=True, default=str).encode()).hexdigest()[:16]


def current_progress(trainer: Any) -> TrainingProgress:
    """Say when in a run this is."""
    return TrainingProgress(trainer.state.global_step + 1, max(trainer.state.max_steps, 1), trainer.args.seed)


def log_probabilities_after(trainer: Any, prompt_ids: Sequence[Sequence[int]], output: dict[str, Any]) -> torch.Tensor:
    """Compute log pi of a batch's completions after other prompts than the batch has. B x T."""
    device = output["completion_ids"].device
    rows = [torch.tensor(ids) for ids in prompt_ids]
    ids = pad(rows, padding_value=trainer._tokenizer.pad_token_id, padding_side="left").to(device)
    mask = pad([torch.ones_like(row) for row in rows], padding_value=0, padding_side="left").to(device)
    with torch.no_grad():
        logps, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model,
            torch.cat([ids, output["completion_ids"]], dim=1),
            torch.cat([mask, output["completion_mask"]], dim=1),
            output["completion_ids"].size(1),
            batch_size=trainer.args.per_device_train_batch_size,
        )
    result: torch.Tensor = logps
    return result
