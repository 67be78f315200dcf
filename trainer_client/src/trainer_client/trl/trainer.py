"""`RubricGRPOTrainer`: TRL's GRPO with advantages by one of the papers' methods, over whole groups on all ranks.

TRL's methods are overridden, each around a call of the original: `_generate` (what the policy generates from),
`_calculate_rewards` (a response of which any part of the reward is missing has none), `_generate_and_score_completions`
(a method's advantages in place of TRL's, and what has no reward left out of the loss), and
`_get_per_token_logps_and_entropies` (what the loss compares the policy with). TRL's loss itself stays as it is, with
all its settings. `tests/trainer_client/trl/test_trl_shape.py` says what is relied upon.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer

from trainer_client.trl._batch import Batch
from trainer_client.trl._generation import Generation, Sampled
from trainer_client.trl._readers import readers_for
from trainer_client.trl._skip import SkipEmptySteps
from trainer_client.trl.config import RubricGRPOConfig
from trainer_client.trl.generation_callback import GenerationCallback, ScoredGeneration
from trainer_client.trl.methods import Method, Rollout
from trainer_client.trl.reward import RubricReward

STATE_FILE = "adjudge_state.json"
"""In a checkpoint: which version of each rubric the run is pinned to, and what its method remembers."""


class RubricGRPOTrainer(GRPOTrainer):
    """Trains a policy on rubric rewards by the method that its config names.

    Args:
        model: as for `GRPOTrainer`.
        reward_funcs: a `RubricReward`, alone or beside other reward functions; `dro`, whose reward is not the judge's,
            also takes others without one, and then has no gates. What the `RubricReward` leaves open is the method's.
            A response for which any of them gives no finite number is left out of the loss.
        args: the settings and the method.
        kwargs: everything else that `GRPOTrainer` takes.

    Raises:
        ValueError: there is not exactly one `RubricReward`, or its mode cannot serve the method.
        TooManyUnscored: while training; see `RubricReward`.
    """

    masks_missing_rewards = True

    def __init__(self, model: Any, reward_funcs: Any, args: RubricGRPOConfig, **kwargs: Any) -> None:
        given = list(reward_funcs) if isinstance(reward_funcs, Sequence) else [reward_funcs]
        self.method = args.build_method()
        self.rubric_reward = _rubric_reward(given, args.method, self.method)
        functions = [self.rubric_reward if isinstance(function, RubricReward) else function for function in given]
        self._required = len(functions)
        self._inputs: list[dict[str, Any]] = []
        self._sampled: Sampled | None = None
        self._local: list[Rollout] = []
        self._rewards: list[float | None] = []
        self._functions: dict[str, list[float | None]] = {}
        self._loss_inputs: dict[str, Any] | None = None
        self._each_its_own_prompt = False
        self._memory = self.method.start()
        super().__init__(model, functions, args, **kwargs)
        self._generation = Generation(self)
        self._readers = readers_for(self)
        self._skip = SkipEmptySteps(self)
        self.add_callback(self._skip)

    def generate_each(self, prompts: list[Any]) -> tuple[Any, ...]:
        """Generate one response to each prompt, whatever prompts stand beside it."""
        self._each_its_own_prompt = True
        try:
            generated: tuple[Any, ...] = super()._generate(prompts)
        finally:
            self._each_its_own_prompt = False
        return generated

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        self._sampled = self._generation.sample(prompts, self._inputs, super()._generate)
        return self._sampled.generated

    def _generate_single_turn(
        self, prompt_ids: Any, images: Any, multimodal_fields: Any, num_generations: int, has_tool_images: bool = False
    ) -> tuple[Any, Any]:
        # a vLLM server generates a whole group from the first of `num_generations` prompts
        count = 1 if self._each_its_own_prompt else num_generations
        result: tuple[Any, Any] = super()._generate_single_turn(
            prompt_ids, images, multimodal_fields, count, has_tool_images
        )
        return result

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: list[Any], completions: list[Any], completion_ids_list: list[Any]
    ) -> torch.Tensor:
        """Score, and give no reward at all where a part of it is missing. N x F, over all ranks."""
        rewards: torch.Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        missing = ~torch.isfinite(rewards[:, : self._required]).all(dim=1)
        rewards = rewards.masked_fill(missing.unsqueeze(1), torch.nan)
        totals = (rewards * self.reward_weights.to(rewards.device)).nansum(dim=1).tolist()
        self._rewards = [None if gone else total for gone, total in zip(missing.tolist(), totals, strict=True)]
        by_function = zip(self.reward_func_names, rewards.T.tolist(), strict=True)
        self._functions = {name: [None if math.isnan(one) else one for one in own] for name, own in by_function}
        assert self._sampled is not None
        self._local = [Rollout(tokens=len(ids)) for ids in completion_ids_list]
        for reader in self._readers:
            self._local = reader.read(self._local, inputs, self._sampled.generated[0], completion_ids_list)
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._inputs = inputs
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        mode = "train" if self.model.training else "eval"
        size = self.num_generations if mode == "train" else self.num_generations_eval
        everyone: list[Rollout] = gather_object(self._local)
        rollouts = [replace(rollout, reward=reward) for rollout, reward in zip(everyone, self._rewards, strict=True)]
        batch = Batch.of(self.method, rollouts, size, self._memory)
        if mode == "train":
            self._memory = batch.memory
        first = self.accelerator.process_index * len(self._local)
        own = slice(first, first + len(self._local))
        kept = torch.tensor(batch.kept[own], device=output["completion_ids"].device)
        output["advantages"] = batch.tensor(own, output["completion_ids"])
        output["completion_mask"] = output["completion_mask"] * kept.unsqueeze(1).to(output["completion_mask"].dtype)
        mask = output["completion_mask"] * output.get("tool_mask", 1)
        output["num_items_in_batch"] = self.accelerator.gather(mask.sum()).sum()
        assert self._sampled is not None
        output.update(self._generation.loss_inputs(self._sampled, output))
        self._add_metrics({**batch.metrics, **self._sampled.metrics})
        self._log_advantages(batch.means)
        scored = ScoredGeneration(
            rewards=batch.rewards,
            functions=self._functions,
            group_size=size,
            completions=self._sampled.completions,
            first=first,
            elsewhere=self._sampled.elsewhere,
            training=mode == "train",
        )
        for callback in self._generation_callbacks:
            self._add_metrics(callback.on_scored(scored))
        return output

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        self._loss_inputs = dict(inputs)  # the same inputs serve several iterations
        self._skip.saw(inputs)
        try:
            loss: torch.Tensor = super()._compute_loss(model, self._loss_inputs)
        finally:
            self._loss_inputs = None
        return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        logps, entropies, auxiliary = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._loss_inputs is not None:
            self._log_observed(logps, self._loss_inputs)
            for callback in self._generation_callbacks:
                self._add_metrics(callback.on_loss(logps.detach(), self._loss_inputs, self.model.training))
            self._loss_inputs.update(self.method.compared_with(logps, self._loss_inputs))
        return logps, entropies, auxiliary

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            state = {} if self.rubric_reward is None else self.rubric_reward.state()
            remembered = self.method.as_json(self._memory)
            state |= {} if remembered is None else {"method": remembered}
            folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            (folder / STATE_FILE).write_text(json.dumps(state, indent=2), encoding="utf-8")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        path = Path(checkpoint or "") / STATE_FILE
        if checkpoint is not None and path.exists():
            state = json.loads(path.read_text(encoding="utf-8"))
            if self.rubric_reward is not None:
                self.rubric_reward.load_state(state)
            if "method" in state:
                self._memory = self.method.from_json(state["method"])

    @property
    def _generation_callbacks(self) -> list[GenerationCallback]:
        return [callback for callback in self.callback_handler.callbacks if isinstance(callback, GenerationCallback)]

    def _add_metrics(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._metrics["train" if self.model.training else "eval"][name].append(value)

    def _log_observed(self, logps: torch.Tensor, inputs: dict[str, Any]) -> None:
        mode = "train" if self.model.training else "eval"
        for name, (total, count) in self.method.observed(logps, inputs).items():
            sums = self.accelerator.reduce(torch.stack([total.float(), count.float()]), reduction="sum")
            if sums[1] > 0:
                self._metrics[mode][name].append((sums[0] / sums[1]).item())

    def _log_advantages(self, means: list[float]) -> None:
        """Put the method's advantages into TRL's table of completions, in place of TRL's own."""
        logged = self._logs["advantages"]
        for _ in range(min(len(means), len(logged))):
            logged.pop()
        logged.extend(means)


def _rubric_reward(functions: Sequence[Any], name: str, method: Method) -> RubricReward | None:
    """Find the one `RubricReward` and fill in what its user left to the method."""
    found = [function for function in functions if isinstance(function, RubricReward)]
    if not found and functions and method.certain:
        return None
    if len(found) != 1:
        raise ValueError(
            f"{len(found)} of {len(functions)} reward functions are a RubricReward; give exactly one, "
            "and other reward functions beside it or in its `others`"
        )
    reward = found[0].with_defaults(**method.scoring)
    if method.stepwise and reward.mode != "stepwise":
        raise ValueError(
            f"the RubricReward has mode {reward.mode!r}, and method {name!r} needs each verdict's step; leave the mode "
            "out, or use 'stepwise'"
        )
    reward.needs_criteria = method.stepwise
    return reward
