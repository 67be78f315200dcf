"""RuscaRL's scaffolds in verl: an agent loop that adds criteria of the rubric to prompts, for verl's V1 trainers.

verl creates the loop from the file at `actor_rollout_ref.rollout.agent.agent_loop_config_path`, whose entry has the
loop's arguments. A row selects the loop by its column `agent_name`; validation rows without it get no scaffold. The
mathematics is in `trainer_client.scaffold`. Needs verl.
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from trainer_client.errors import InvalidRequest
from trainer_client.rows.reading import prompt_digest
from trainer_client.rows.tables import to_plain_data
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
    """Generates one response from a prompt with criteria in it (RuscaRL, eq. 3).

    Args:
        total_steps: the total number of training steps, at least 1. Default: `trainer.total_training_steps` of verl's
            configuration.
        seed: the seed of the training run; the same seed shows the same criteria.
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
            raise ValueError("the scaffold needs the total number of steps; set total_steps, or total_training_steps")
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
        scaffold_ratios(0.0, 1, **self._schedule)  # reject arguments out of range before generation starts

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Generate a response. A row without a rubric gets no scaffold.

        Args:
            sampling_params: verl's sampling parameters.
            kwargs: verl's arguments and the row's columns, including `extra_info` with the rubric.

        Raises:
            InvalidRequest: the rubric is a reference, the prompt has images, or the trainer is not one of verl's V1.
        """
        messages = to_plain_data(kwargs["raw_prompt"])
        scaffolded = self._scaffolded(messages, kwargs)
        if scaffolded is messages:
            return await super().run(sampling_params, **kwargs)
        if await self.process_multi_modal_info(messages):
            raise InvalidRequest("scaffolds work with text prompts only; leave agent_name out of rows with images")
        output = await super().run(sampling_params, **{**kwargs, "raw_prompt": scaffolded})
        if self._ratio == "plain":
            if output.routed_experts is not None:
                raise InvalidRequest(
                    "router replay holds experts for the scaffold's tokens; turn it off, or set ratio: scaffolded"
                )
            output.prompt_ids = await self.ct_build_initial_tokens(messages)
        return output

    def _scaffolded(self, messages: Any, row: Mapping[str, Any]) -> Any:
        rubric = read_rubric((row.get("extra_info") or {}).get("rubric"))
        if rubric is None:
            return messages
        if not isinstance(rubric, RubricContent):
            raise InvalidRequest(
                f"extra_info.rubric is a reference ({rubric}), but a scaffold needs criteria; put them into the column"
            )
        if "session_id" not in row or "global_steps" not in row:
            raise InvalidRequest("a scaffold needs the sample and the step from verl; set trainer.use_v1=True")
        step, sample = int(row["global_steps"]), int(row["session_id"]) + 1
        criteria = [criterion for criterion in rubric.criteria if not criterion.shadow]
        samples = max(int(self.rollout_config.n), sample)
        ratios = scaffold_ratios(training_progress(max(1, step), self._total), samples, **self._schedule)
        shown = shown_to_sample(
            len(criteria),
            ratios,
            run_seed=self._seed,
            prompt_id=prompt_digest(messages),
            step=step,
            sample=sample,
        )
        chosen = [criteria[index] for index in shown]
        return scaffolded_prompt(messages, chosen, place=self._place, weights=self._weights)
