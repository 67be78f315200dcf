"""Importing this module passes each batch's steps to the estimator `adjudge_stepwise`, for verl's V1 trainers.

It reads the tokens, and the reward function's output beside the score, from verl's transfer queue. It works with verl
0.9, and raises an error if verl's trainer differs. Needs verl.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from trainer_client.rows.tables import to_plain_data
from trainer_client.text.thinking import judged_content
from trainer_client.text.turns import place_trajectory, step_spans, turn_spans
from trainer_client.verl.carrying import carry, fetch
from trainer_client.verl.estimators import StepTokens, steps_context
from trainer_client.verl.reward import MESSAGES_FIELD
from trainer_client.wire import Response


def carry_steps(trainer: type, queue: Any, offsets: Any) -> None:
    """Wrap a trainer class so that it provides steps to the estimator; see `carry`.

    Args:
        trainer: verl's `PPOTrainer`.
        queue: the module `transfer_queue`.
        offsets: creates a `TokenOffsets` from a tokenizer.
    """

    def context(self: Any, batch: Any) -> AbstractContextManager[None]:
        if not hasattr(self, "adjudge_offsets"):
            self.adjudge_offsets = offsets(self.tokenizer)
        rows, fields = fetch(queue, batch, ["responses", "response_mask"])
        ids = [row.tolist() for row in rows["responses"].unbind()]
        reward_info = [value.get("reward_extra_info") or {} for value in fields]
        masks = [row.tolist() for row in rows["response_mask"].unbind()]
        messages = [value.get(MESSAGES_FIELD) for value in fields]
        trajectories = zip(ids, reward_info, masks, messages, strict=True)
        return steps_context([read_steps(self.adjudge_offsets, *one) for one in trajectories])

    remedy = "Use reward_kwargs.step_deltas=fold with adv_estimator=adjudge_group instead"
    carry(trainer, "adjudge_stepwise", context, remedy)


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
