"""Importing this module passes each batch's steps to the estimator `adjudge_stepwise`, for verl's V1 trainers.

verl stores the tokens, and the reward function's output beside the score, in its transfer queue, but its trainer reads
neither when it computes advantages. This module wraps that method to read them. The method is internal to verl: this
works with verl 0.9, and raises an error if the signature differs. Needs verl.
"""

import inspect
import json
from collections.abc import Mapping, Sequence
from functools import wraps
from importlib import import_module
from typing import Any

from trainer_client._inputs import to_plain_data
from trainer_client.text.thinking import judged_content
from trainer_client.text.turns import place_trajectory, step_spans, turn_spans
from trainer_client.verl.estimators import StepTokens, steps_context
from trainer_client.verl.reward import MESSAGES_FIELD
from trainer_client.wire import Response

METHOD, PARAMETERS = "_compute_advantage", ["self", "batch", "metrics"]
"""The method of verl's `PPOTrainer` to wrap, and its parameters."""

_FIELDS = ["responses", "response_mask", "extra_fields"]


def carry_steps(trainer: type, queue: Any, offsets: Any) -> None:
    """Wrap a trainer class so that it provides steps to the estimator. Repeated calls have no effect.

    Args:
        trainer: verl's `PPOTrainer`; the wrapper applies to its subclasses too.
        queue: the module `transfer_queue`.
        offsets: creates a `TokenOffsets` from a tokenizer.

    Raises:
        RuntimeError: the method is missing or has an unknown signature.
    """
    method = getattr(trainer, METHOD, None)
    if hasattr(method, "carries_steps"):
        return
    parameters = None if method is None else list(inspect.signature(method).parameters)
    if method is None or parameters != PARAMETERS:
        raise RuntimeError(
            f"{trainer.__name__}.{METHOD} takes {parameters}, not {PARAMETERS}; this version of verl is not "
            "supported. Use reward_kwargs.step_deltas=fold with adv_estimator=adjudge_group instead"
        )

    @wraps(method)
    def with_steps(self: Any, batch: Any, metrics: Any) -> Any:
        if self.config.algorithm.adv_estimator != "adjudge_stepwise":
            return method(self, batch, metrics=metrics)
        if not hasattr(self, "adjudge_offsets"):
            self.adjudge_offsets = offsets(self.tokenizer)
        rows = queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=_FIELDS)
        ids = [row.tolist() for row in rows["responses"].unbind()]
        fields = [getattr(value, "data", value) for value in rows["extra_fields"]]  # some queue backends wrap values
        reward_info = [value.get("reward_extra_info") or {} for value in fields]
        masks = [row.tolist() for row in rows["response_mask"].unbind()]
        messages = [value.get(MESSAGES_FIELD) for value in fields]
        trajectories = zip(ids, reward_info, masks, messages, strict=True)
        steps = [read_steps(self.adjudge_offsets, *one) for one in trajectories]
        with steps_context(steps):
            return method(self, batch, metrics=metrics)

    with_steps.carries_steps = True  # type: ignore[attr-defined]
    setattr(trainer, METHOD, with_steps)


def read_steps(
    offsets: Any, ids: Sequence[int], reward_info: Mapping[str, Any], mask: Sequence[int], messages: Any = None
) -> StepTokens:
    """Read the delta of each step of a response, and find its tokens.

    Args:
        offsets: the `TokenOffsets` of the policy's tokenizer.
        ids: the response's T tokens.
        reward_info: the result of `compute_score`.
        mask: T values, 1 for a token that the policy sampled.
        messages: the messages that were judged in place of the decoded response; None if there are none.
    """
    steps = json.loads(reward_info.get("steps") or "[]")
    if not steps:
        return StepTokens({}, {})
    rule = reward_info.get("step_rule", "headings")
    alignment, turns = None, None
    if messages is None:
        text, _ = offsets.text_and_offsets(ids)
        alignment, turns = offsets.place(ids, text), turn_spans(len(ids), mask, 1)
    else:
        response = Response.model_validate({"text": to_plain_data(messages)})
        said = sum(message.role == "assistant" for message in response.text if not isinstance(message, str))
        opens = reward_info.get("prompt_opens")
        judged = judged_content(response, reward_info.get("reasoning", "strip"), opens)
        if rule == "turns":
            turns = turn_spans(len(ids), mask, said)
        else:
            alignment = place_trajectory(offsets, ids, mask, judged, said)
    spans = step_spans(rule, [(number, start, end) for number, start, end, _ in steps], alignment, turns)
    return StepTokens({number: delta for number, _, _, delta in steps}, spans or {})


carry_steps(
    import_module("verl.trainer.ppo.v1").PPOTrainer,
    import_module("transfer_queue"),
    import_module("trainer_client.text.offsets").TokenOffsets,
)
