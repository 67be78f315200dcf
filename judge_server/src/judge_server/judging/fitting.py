"""Making a response fit the judge's context, where the request allows its middle to be left out."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from judge_server.errors import EngineUnavailable
from judge_server.judging.plan import ResponsePlan
from judge_server.ports import Batch, Call, JsonOutput, TextOutput

_MARGIN = 0.95
_TRIES = 8
_LAST_RESORT = 16
"""Where the estimate leaves nothing to show, show this fraction: it errs when little of the context is left."""


_TEMPLATE_TOKENS = 256
"""More tokens than a chat template has around its messages, and than a verdict takes."""


class SupportsTokenCount(Protocol):
    """Whoever can say how long a prompt is."""

    async def count_tokens(self, batch: Batch) -> int:
        """How many tokens the batch's longest prompt takes; raises `EngineUnavailable` when it cannot be asked."""


async def fit_response(
    counting: SupportsTokenCount,
    context_tokens: int,
    length: int,
    plan: Callable[[int | None], Awaitable[ResponsePlan]],
) -> ResponsePlan:
    """Plan a response of `length` characters so that its longest prompt fits `context_tokens`.

    `plan(keep)` plans it with `keep` characters shown. Where even a few characters do not fit (the prompt or the
    grounding alone is too long), the plan is returned as it is, and the engine fails its calls as `truncated_input`.
    """
    whole = await plan(None)
    if not whole.batch.calls:
        return whole
    longest = max(len(call.question.encode()) + _room(call) for call in whole.batch.calls)
    if (
        len(whole.batch.system.encode()) + len(whole.batch.shared.encode()) + longest + _TEMPLATE_TOKENS
        <= context_tokens
    ):
        return whole  # no tokenizer makes more tokens than bytes
    around = len(whole.batch.system) + max(len(call.question) for call in whole.batch.calls)
    candidate, keep = whole, length
    for _ in range(_TRIES):
        try:
            tokens = await counting.count_tokens(candidate.batch)
        except EngineUnavailable:
            return whole  # its calls will fail one by one, and say why
        if tokens <= context_tokens:
            return candidate
        shown = around + len(candidate.batch.shared)
        estimate = min(keep - 1, keep - int(shown * (1 - _MARGIN * context_tokens / tokens)))
        keep = estimate if estimate > 0 else keep // _LAST_RESORT
        if keep < 1:
            return whole
        candidate = await plan(keep)
    return whole


def _room(call: Call) -> int:
    """The most tokens that follow the question: thoughts, reasons and what asks for the verdict, the answer."""
    written = call.answer.max_tokens if isinstance(call.answer, JsonOutput | TextOutput) else 0
    if call.reasoning is None:
        return call.think_tokens + written
    return 2 * call.think_tokens + call.reasoning.max_tokens + len(call.reasoning.ask.encode()) + written
