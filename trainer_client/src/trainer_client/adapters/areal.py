"""AReaL: a reward function for its workflows.

    reward_fn = RubricRewardFunction("http://judge:8000", "math/quadratics")

Give the workflow this object, or the import path of a module's variable that holds it. AReaL calls it in a process
pool, and rejects a rollout whose reward function raises, so a response that could not be judged is left out.

AReaL gives up on a call after 15 seconds, the time that it waits for a process included, and then counts 0 as the
reward. The default deadline stays below this, but a queue in front of the pool does not. Give the workflow more
processes and more time, with a `deadline_s` well below it:

    workflow.async_reward_fn = AsyncRewardWrapper(reward_fn, timeout_seconds=120, max_workers=64)
"""

import pickle
from functools import lru_cache
from typing import Any

from trainer_client.adapters.scorer import RubricScorer
from trainer_client.client.calls import RubricLike

__all__ = ["RubricRewardFunction"]

END_MARKERS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end|>", "<|return|>", "<end_of_turn>", "<eos>", "</s>")
"""Ends of turns, which AReaL leaves at the end of a decoded completion. The judge does not see them."""


class RubricRewardFunction:
    """A reward function of AReaL's signature.

    The judge sees the row's `messages`, or the decoded prompt if it has none, the completion, and the columns `rubric`,
    `grounding`, `reference_answer` and `ground_truth`.

    Args:
        client: the service's address; by default the environment variable ADJUDGE_URL.
        rubric: a reference or a list of criteria, for rows without a rubric.
        deadline_s: seconds that the service has.
        grace_s: seconds to keep waiting after the deadline.
        options: as for `RubricScorer`.
    """

    def __init__(
        self,
        client: str | None = None,
        rubric: RubricLike | None = None,
        *,
        deadline_s: float = 8.0,
        grace_s: float = 2.0,
        **options: Any,
    ) -> None:
        arguments = {"client": client, "rubric": rubric, "deadline_s": deadline_s, "grace_s": grace_s, **options}
        RubricScorer(**arguments)  # so that mistakes are reported here, and not in the pool
        self._scorer = pickle.dumps(arguments)

    def __call__(
        self, prompt: Any, completions: Any, prompt_ids: Any = None, completion_ids: Any = None, **row: Any
    ) -> float:
        """Return the reward of a completion.

        Raises:
            NoReward: it could not be judged.
        """
        scorer = _scorer(self._scorer)
        asked = row.pop("messages", None) or str(prompt)
        return scorer.require(scorer.score_blocking(asked, without_end(str(completions)), row))


@lru_cache(maxsize=16)
def _scorer(arguments: bytes) -> RubricScorer:
    """The scorer of this process, to which AReaL sends the function anew with each call."""
    return RubricScorer(**pickle.loads(arguments))  # pickled by this class # noqa: S301 # nosec B301


def without_end(text: str) -> str:
    """Return a completion without the end tokens that it closes with, and the white space before them."""
    end = _end_without_space(text, len(text))
    shown = len(text)
    while marker := next((one for one in END_MARKERS if text.endswith(one, 0, end)), None):
        shown = end = _end_without_space(text, end - len(marker))
    return text[:shown]


def _end_without_space(text: str, end: int) -> int:
    while end and text[end - 1].isspace():
        end -= 1
    return end
