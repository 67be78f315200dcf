"""RuscaRL's scaffolds under verl: an agent loop that shows samples criteria of their rubric, for its V1 trainers.

verl makes the loop from a file that `actor_rollout_ref.rollout.agent.agent_loop_config_path` names; the file's entry
has the loop's arguments. Rows take it by their column `agent_name`, so rows for validation that name no loop are
answered without a scaffold. The mathematics is in `trainer_client.scaffold`. Needs verl.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal, get_args

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from trainer_client._columns import to_plain_data
from trainer_client.errors import InvalidRequest
from trainer_client.scaffold import (
    Decay,
    GroupPattern,
    Place,
    scaffold_ratios,
    scaffolded_prompt,
    shown_to_sample,
    training_progress,
)
from trainer_client.verl.reward import read_rubric
from trainer_client.wire import RubricContent

Ratio = Literal["plain", "scaffolded"]


class ScaffoldedAgentLoop(SingleTurnAgentLoop):  # type: ignore[misc]  # verl has no types
    """Generate one response from a prompt with criteria in it, and train on it (RuscaRL, eq. 3).

    Args:
        total_steps: training steps in all, at least 1; None for `trainer.total_training_steps` of verl's configuration.
        seed: of the training run; the same seed shows the same criteria.
        ratio: the prompt that the response is trained on: `plain`, without the criteria (paper's best), or
            `scaffolded`, as it was generated.
        pattern, full, decay, alpha, midpoint, power: see `trainer_client.scaffold.scaffold_ratios`.
        place, weights: see `trainer_client.scaffold.scaffolded_prompt`.

    Raises:
        ValueError: the number of steps is missing, or an argument is out of range.
    """

    def __init__(
        self,
        *args: Any,
        total_steps: int | None = None,
        seed: int = 0,
        ratio: Ratio = "plain",
        pattern: GroupPattern = "linear",
        full: int = 1,
        decay: Decay = "sigmoid",
        alpha: float = 125.0,
        midpoint: float = 0.2,
        power: float = 1.0,
        place: Place = "system",
        weights: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        total = total_steps if total_steps is not None else self.config.trainer.total_training_steps
        if total is None:
            raise ValueError("the scaffold goes by the share of steps done; set total_steps, or total_training_steps")
        if ratio not in get_args(Ratio):
            raise ValueError(f"ratio is {ratio!r}; use one of {', '.join(get_args(Ratio))}")
        self._total, self._seed, self._ratio = int(total), seed, ratio
        self._schedule: dict[str, Any] = {
            "pattern": pattern,
            "full": full,
            "decay": decay,
            "alpha": alpha,
            "midpoint": midpoint,
            "power": power,
        }
        self._place, self._weights = place, weights
        scaffold_ratios(0.0, 1, **self._schedule)  # refuses what is out of range before anything is generated

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Generate a response; `kwargs` are verl's and the row's columns, `extra_info` with the rubric among them.

        A row without a rubric is answered without a scaffold.

        Raises:
            InvalidRequest: the rubric is a reference, the prompt holds images, or the trainer is not one of verl's V1.
        """
        messages = to_plain_data(kwargs["raw_prompt"])
        scaffolded = self._scaffolded(messages, kwargs)
        if scaffolded is messages:
            return await super().run(sampling_params, **kwargs)
        if await self.process_multi_modal_info(messages):
            raise InvalidRequest("a scaffold goes into prompts of text; leave agent_name out of rows with images")
        output = await super().run(sampling_params, **{**kwargs, "raw_prompt": scaffolded})
        if self._ratio == "plain":
            if output.routed_experts is not None:
                raise InvalidRequest(
                    "router replay holds experts of the scaffold's tokens; turn it off, or set ratio: scaffolded"
                )
            output.prompt_ids = await self.ct_build_initial_tokens(messages)
        return output

    def _scaffolded(self, messages: Any, row: Mapping[str, Any]) -> Any:
        rubric = read_rubric((row.get("extra_info") or {}).get("rubric"))
        if rubric is None:
            return messages
        if not isinstance(rubric, RubricContent):
            raise InvalidRequest(
                f"extra_info.rubric names {rubric}; a scaffold needs the criteria: write them into the column"
            )
        if "session_id" not in row or "global_steps" not in row:
            raise InvalidRequest("only verl's V1 trainers tell a loop its sample and step; set trainer.use_v1=True")
        step, sample, criteria = int(row["global_steps"]), int(row["session_id"]) + 1, rubric.criteria
        samples = max(int(self.rollout_config.n), sample)
        ratios = scaffold_ratios(training_progress(max(1, step), self._total), samples, **self._schedule)
        shown = shown_to_sample(
            len(criteria),
            ratios,
            run_seed=self._seed,
            prompt_id=hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest(),
            step=step,
            sample=sample,
        )
        chosen = [criteria[index] for index in shown]
        return scaffolded_prompt(messages, chosen, place=self._place, weights=self._weights)
