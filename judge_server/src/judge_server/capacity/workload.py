"""Count the work in a sample of responses: judgements, calls and prompt tokens, with and without reuse of prefixes.

Prompts are those that judging would send, planned by the same code and tokenised by the engine's own tokenizer. Nothing
is judged. An engine computes of a prompt what its prefix cache does not hold:

- `slot`: the cache is the previous prompt, as with one llama.cpp slot. At least one token of each prompt is computed.
- `blocks`: the cache holds all prompts, in whole blocks of 16 tokens, as with vLLM and enough memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from judge_server.judging.plan import ResponsePlan
from judge_server.ports import Batch, Call, TokenChoice

PrefixCache = Literal["slot", "blocks"]

BLOCK_TOKENS = 16


@runtime_checkable
class PromptTokenizer(Protocol):
    """Tokenises whole prompts."""

    async def prompt_tokens(self, batch: Batch, call: Call) -> list[int]:
        """Return the token ids of a call's prompt, chat template included, up to the answer."""


class CountedCall(NamedTuple):
    """A call's prompt tokens, those of them that an engine computes, and the tokens that it writes."""

    prompt: int
    computed: int
    written: int


@dataclass(frozen=True, slots=True)
class Workload:
    """The work in a sample.

    Attributes:
        responses: the responses.
        judgements: the verdicts on them, by the judge and by programs; of a ranking, the comparisons.
        by_program: the verdicts that need no call.
        repeated: calls that ask what another call of the sample asks; they are made once.
        calls: the calls that are made, in order.
        last: the tokens of the last prompt.
    """

    responses: int
    judgements: int
    by_program: int
    repeated: int
    calls: tuple[CountedCall, ...]
    last: tuple[int, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        """The tokens of all prompts."""
        return sum(call.prompt for call in self.calls)

    @property
    def computed(self) -> int:
        """The prompt tokens that an engine with this prefix cache computes."""
        return sum(call.computed for call in self.calls)

    @property
    def written(self) -> int:
        """The tokens that the judge writes."""
        return sum(call.written for call in self.calls)


class UncountableCall(ValueError):
    """The length of a call depends on what the judge writes, so that it cannot be counted beforehand."""


async def count_workload(
    tokenizer: PromptTokenizer,
    plans: Sequence[ResponsePlan],
    cache: PrefixCache,
    *,
    responses: int,
    previous: Sequence[int] = (),
) -> Workload:
    """Count the work of plans, in the order in which an engine would take their calls.

    Args:
        tokenizer: the engine's tokenizer.
        plans: the plans of the sample.
        cache: what the engine reuses.
        responses: the number of responses that the plans are about.
        previous: the tokens of the prompt before the first one, which a `slot` still holds.

    Raises:
        UncountableCall: a call has the judge write more than one token.
    """
    judgements = by_program = repeated = 0
    counted: list[CountedCall] = []
    known: set[bytes] = set()
    prefixes = _Prefixes(cache, previous)
    for plan in plans:
        slots = [slot for slot in plan.slots if slot.digests]
        judgements += sum(len(slot.digests) for slot in slots)
        by_program += sum(slot.method != "judge" for slot in slots)
        for planned in plan.planned_calls:
            if known.issuperset(planned.digests):
                repeated += 1
                continue
            known.update(planned.digests)
            call = planned.question.call
            _check_countable(call)
            prompt = await tokenizer.prompt_tokens(plan.batch, call)
            counted.append(CountedCall(len(prompt), prefixes.add(prompt), 1))
    return Workload(responses, judgements, by_program, repeated, tuple(counted), tuple(prefixes.last))


def _check_countable(call: Call) -> None:
    one_token = isinstance(call.answer, TokenChoice) and call.answer.then is None
    if not one_token or call.reasoning is not None or call.think_tokens:
        raise UncountableCall(
            "the judge writes more than one token for a verdict: with rationale, think_tokens, several criteria per "
            "call, the protocols checklist and stepwise, and scales above 9; plan with binary, graded, likert or "
            "ranking"
        )


class _Prefixes:
    """A prefix cache: how much of each prompt must be computed."""

    def __init__(self, cache: PrefixCache, previous: Sequence[int]) -> None:
        self._blocks: set[int] | None = set() if cache == "blocks" else None
        self.last = list(previous)

    def add(self, prompt: list[int]) -> int:
        """Return how many tokens of a prompt are computed, and keep it."""
        if self._blocks is None:
            reused = _common_prefix(self.last, prompt)
        else:
            keys = list(_block_keys(prompt))
            reused = next((n for n, key in enumerate(keys) if key not in self._blocks), len(keys)) * BLOCK_TOKENS
            self._blocks.update(keys)
        self.last = prompt
        return max(1, len(prompt) - reused)


def _common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))


def _block_keys(prompt: Sequence[int]) -> Iterator[int]:
    """Yield a hash of the prompt up to the end of each whole block."""
    key = 0
    for start in range(0, len(prompt) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        key = hash((key, tuple(prompt[start : start + BLOCK_TOKENS])))
        yield key
