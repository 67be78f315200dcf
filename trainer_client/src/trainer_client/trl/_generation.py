"""What the policy generates from: the plain prompts, scaffolded ones, or refinements of a group's best response.

Whatever was generated from, the policy trains on the plain prompt unless its method says otherwise. In evaluation all
prompts are plain.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.utils import gather_object

from trainer_client.trl._environments import select_environments
from trainer_client.trl._refining import COMPLETIONS, GenerationOutput, refine_last
from trainer_client.trl._scaffolding import current_progress, log_probabilities_after, sample_requests
from trainer_client.trl._scored import ScoredRow
from trainer_client.trl.methods import Rgr, Ruscarl
from trainer_client.wire import Criterion


@dataclass(frozen=True, slots=True)
class SampledBatch:
    """Responses to a batch of prompts.

    Attributes:
        generated: what TRL's `_generate` gives; its prompt ids are those that are trained on.
        asked_ids: what each response was generated from, where the policy's old probabilities are taken after that.
        refined: which responses are refined ones, where the method refines.
        elsewhere: which were generated from another prompt than the one they are trained on, where any may be.
        metrics: what the log shows.
    """

    generated: GenerationOutput
    generation_prompt_ids: Sequence[Sequence[int]] | None = None
    refined: Sequence[bool] | None = None
    off_policy: Sequence[bool] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def completions(self) -> Sequence[Any]:
        """The responses, text or messages."""
        responses: Sequence[Any] = self.generated[COMPLETIONS]
        return responses


class RolloutGenerator:
    """Has a trainer's policy generate as its method wants.

    Attributes:
        rubric_alone: judges responses that may be refined, without other reward functions; None where none is refined.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._method = trainer.method
        self.rubric_only_reward: Any = None
        if isinstance(self._method, Rgr):
            self.rubric_only_reward = trainer.rubric_reward.without_extra_rewards()
            self.rubric_only_reward.needs_criteria = True

    def sample(
        self, prompts: list[Any], inputs: Sequence[Mapping[str, Any]], generate: Callable[[list[Any]], GenerationOutput]
    ) -> SampledBatch:
        """Generate a response for each row of this rank.

        Args:
            prompts, inputs: of the rows.
            generate: TRL's own way.
        """
        training = self._trainer.model.training
        if training and isinstance(self._method, Ruscarl):
            return self._scaffolded(self._method, prompts, inputs)
        generated = generate(prompts)
        if not training or not isinstance(self._method, Rgr):
            return SampledBatch(generated)
        refined = refine_last(self, self._method, prompts, inputs, generated)
        return SampledBatch(refined.generated, refined=refined.rows, off_policy=refined.rows, metrics=refined.metrics)

    def loss_inputs(self, sampled: SampledBatch, output: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Give what the loss needs of how a batch was generated."""
        more: dict[str, torch.Tensor] = {}
        if sampled.refined is not None:
            more["refined"] = torch.tensor(sampled.refined, device=output["completion_ids"].device)
        if sampled.generation_prompt_ids is not None:
            more["old_per_token_logps"] = log_probabilities_after(self._trainer, sampled.generation_prompt_ids, output)
        return more

    def fits(self, prompt: Any, row: int) -> bool:
        """Whether a row's prompt leaves room for a response in what the policy can read."""
        trainer = self._trainer
        room = trainer.args.vllm_max_model_length if trainer.use_vllm else None
        room = room or getattr(trainer.model.config.get_text_config(), "max_position_embeddings", None)
        with select_environments(trainer, [row]):
            ids = trainer._tokenize_prompts([prompt])[0][0]
        return room is None or len(ids) + trainer.max_completion_length <= room

    @property
    def group_size(self) -> int:
        """G."""
        return int(self._trainer.num_generations)

    def first(self, rows: int) -> int:
        """Give the place of this rank's first row among those of all ranks, each rank having as many."""
        return int(self._trainer.accelerator.process_index) * rows

    def judge(
        self, prompts: list[Any], completions: list[Any], ids: list[Any], columns: Mapping[str, list[Any]]
    ) -> Sequence[ScoredRow]:
        """Have responses judged by the rubric alone; to be called on all ranks."""
        state = self._trainer.state
        self._run_coroutine(self.rubric_only_reward(prompts, completions, ids, trainer_state=state, **columns))
        rows: Sequence[ScoredRow] = self.rubric_only_reward.last.rows
        return rows

    def generate_each(self, prompts: list[Any], rows: Sequence[int], num_padding: int) -> GenerationOutput:
        """Generate one response to each prompt; to be called on all ranks with equally many."""
        generated: GenerationOutput = self._trainer.generate_each(prompts, rows, num_padding=num_padding)
        return generated

    def _scaffolded(self, method: Ruscarl, prompts: list[Any], inputs: Sequence[Mapping[str, Any]]) -> SampledBatch:
        trainer = self._trainer
        rubrics = [row.get("rubric") for row in inputs]
        criteria: list[tuple[Criterion, ...]] = self._run_coroutine(trainer.rubric_reward.criteria(rubrics))
        rows = sample_requests(prompts, criteria, self.first(len(prompts)), self.group_size)
        training_progress = current_progress(trainer)
        scaffolded_prompts = method.prompts(rows, training_progress)
        pairs = enumerate(zip(scaffolded_prompts, prompts, strict=True))
        used_prompts = [one if self.fits(one, row) else plain for row, (one, plain) in pairs]
        generated = trainer.generate_each(used_prompts)
        shown = [one != plain for one, plain in zip(used_prompts, prompts, strict=True)]
        too_long = [one != other for one, other in zip(used_prompts, scaffolded_prompts, strict=True)]
        metrics = {
            "scaffold/prompts": _global_share(shown),
            "scaffold/too_long": _global_share(too_long),
            "scaffold/progress": training_progress.progress,
        }
        if method.ratio == "scaffolded":
            return SampledBatch(generated, metrics=metrics)
        plain_ids = trainer._tokenize_prompts(prompts)[0]
        generation_prompt_ids = generated[0] if method.ratio == "corrected" else None
        return SampledBatch(
            (plain_ids, *generated[1:]), generation_prompt_ids=generation_prompt_ids, off_policy=shown, metrics=metrics
        )

    def _run_coroutine(self, call: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._trainer.async_loop).result()


def _global_share(flags: Sequence[bool]) -> float:
    """Give the share of the responses of all ranks."""
    everyone: list[bool] = gather_object(list(flags))
    return sum(everyone) / len(everyone)
