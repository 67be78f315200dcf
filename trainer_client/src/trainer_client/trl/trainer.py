"""`RubricGRPOTrainer`: TRL's GRPO trainer with the papers' advantages, over whole groups on all ranks.

Each override wraps a call of TRL's own method:

- `train`: ends the reports of measures with training.
- `_get_train_sampler`: a resumed run continues with the order of its epoch.
- `_generate`: chooses the prompts to generate from, and replaces groups during refilling.
- `_calculate_rewards`: a response for which a required reward is missing has no reward.
- `_generate_and_score_completions`: uses the method's advantages in place of TRL's, and leaves responses without a
  reward out of the loss.
- `_get_per_token_logps_and_entropies`: changes what the loss compares the policy with.
- `_compute_loss`: aggregates the entropy bonus in the same way as the policy term.

The rest of TRL's loss is unchanged, with all its settings. `tests/trainer_client/trl/test_trl_shape.py` checks the
parts of TRL that this relies on.
"""

import json
import logging
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch.utils.data import Sampler
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer

from trainer_client.errors import InvalidRequest
from trainer_client.trl.callbacks import GenerationCallback, JudgeSleepCallback, ScoredGeneration
from trainer_client.trl.config import RubricGRPOConfig
from trainer_client.trl.entropy_bonus import EntropyBonus
from trainer_client.trl.methods import Method, Rollout
from trainer_client.trl.methods.base import groups_of
from trainer_client.trl.reward import RubricReward
from trainer_client.trl.rollouts.batch import AdvantageBatch, readers_for
from trainer_client.trl.rollouts.certainty import FrozenPolicy
from trainer_client.trl.rollouts.generation import (
    GeneratedRows,
    RolloutGenerator,
    SampledBatch,
    reset_environments,
    select_environments,
)
from trainer_client.trl.rollouts.measure_reports import MeasureReporter
from trainer_client.trl.rollouts.refilling import Refiller
from trainer_client.trl.scoring.context import refuse_removed_columns, warn
from trainer_client.wire import COMPARES_RESPONSES, NEEDS_NO_RUBRIC

logger = logging.getLogger(__name__)

STATE_FILE = "adjudge_state.json"
"""The file in a checkpoint with the pinned rubric versions, and the state of the method and of the callbacks."""


class RubricGRPOTrainer(GRPOTrainer):
    """Trains a policy on rubric rewards by the method that its config names.

    Args:
        model: as for `GRPOTrainer`.
        reward_funcs: a `RubricReward`, alone or with other reward functions. `dro`, whose reward does not come from
            the judge, also works without a `RubricReward`, and then has no gates. The method sets the options that
            the `RubricReward` does not. A response for which the `RubricReward`, or one of `args.required_rewards`,
            gives no reward is left out of the loss. None from any other function means that the function does not
            apply to that response.
        args: the settings and the method; by default TRL's settings, and the method `rubric`.
        kwargs: everything else that `GRPOTrainer` takes.

    Raises:
        TypeError: `args` is not a `RubricGRPOConfig`.
        ValueError: there is not exactly one `RubricReward`, its mode does not fit the method, or a required reward
            function is not among those given.
        InvalidRequest: one of the first rows of a dataset is invalid; see `RubricReward.check_rows`.
        TooManyUnscored: while training; see `RubricReward`.
    """

    masks_missing_rewards = True

    def __init__(self, model: Any, reward_funcs: Any, args: RubricGRPOConfig | None = None, **kwargs: Any) -> None:
        args = _default_config(model) if args is None else args
        if not isinstance(args, RubricGRPOConfig):
            raise TypeError(
                f"args is a {type(args).__name__}, which has no method; give a RubricGRPOConfig, which takes all "
                "settings of a GRPOConfig. For plain GRPO, use method='rubric'"
            )
        given = list(reward_funcs) if isinstance(reward_funcs, Sequence) else [reward_funcs]
        self.method = args.build_method()
        self.rubric_reward = _rubric_reward(given, args.method, self.method)
        if self.rubric_reward is not None:  # before a model is loaded, which takes minutes
            _check_datasets(self.rubric_reward, args, kwargs)
        functions = [self.rubric_reward if isinstance(function, RubricReward) else function for function in given]
        self._inputs: list[dict[str, Any]] = []
        self._sampled: SampledBatch | None = None
        self._local_rollouts: list[Rollout] = []
        self._rewards: list[float | None] = []
        self._function_rewards: dict[str, list[float | None]] = {}
        self._loss_inputs: dict[str, Any] | None = None
        self._one_response_per_prompt = False
        self._memory = self.method.start()
        super().__init__(model, functions, args, **kwargs)
        self._required = self._required_columns(args.required_rewards or ())
        self.frozen_policy = FrozenPolicy(self)
        self._entropy_bonus = EntropyBonus(self)
        self._generation = RolloutGenerator(self)
        self._refiller = Refiller(self)
        self._readers = readers_for(self)
        self._warned_without_steps = False
        self._skip_empty_steps = SkipEmptySteps(self)
        self._measure_reporter = MeasureReporter(self)
        self.add_callback(self._skip_empty_steps)
        if self.rubric_reward is not None:
            self.add_callback(JudgeSleepCallback(self.rubric_reward))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as `GRPOTrainer` does, and leave no report of measures under way, also after an error."""
        with self._measure_reporter:
            return super().train(*args, **kwargs)

    def generate_each(
        self, prompts: list[Any], rows: Sequence[int] | None = None, *, num_padding: int = 0
    ) -> tuple[Any, ...]:
        """Generate one response to each prompt, without grouping equal or adjacent prompts.

        Args:
            prompts: equally many on all ranks.
            rows: the rows of the batch that the prompts belong to, whose environments are reset; None if they are all
                rows of the batch, in order.
            num_padding: the number of prompts at the end that only pad the list to the same length on all ranks.
        """
        self._one_response_per_prompt = True
        try:
            if rows is None:
                return super()._generate(prompts)  # type: ignore[no-any-return]
            with select_environments(self, rows):
                reset_environments(self, rows, self._inputs, num_padding)
                return super()._generate(prompts)  # type: ignore[no-any-return]
        finally:
            self._one_response_per_prompt = False

    def ignore_metric(self, name: str, value: float) -> None:
        """Take the place of TRL's `log_metric` where only a part of a batch is judged, whose metrics mean nothing."""

    def _get_train_sampler(self, dataset: Any = None) -> Sampler[int]:
        return ResumableSampler(super()._get_train_sampler(dataset), lambda: int(self.state.epoch or 0))

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        if self._refiller.active:
            self._sampled = self._refiller.sample(prompts, self._inputs, super()._generate)
        else:
            self._sampled = self._generation.sample(prompts, self._inputs, super()._generate)
        return self._sampled.generated

    @property
    def has_rewards(self) -> bool:
        """Whether any of the latest scored rollouts of all ranks has a reward."""
        return any(reward is not None and math.isfinite(reward) for reward in self._rewards)

    def gathered_rollouts(self) -> list[Rollout]:
        """Return the latest scored rollouts of all ranks, each with its reward."""
        rollouts: list[Rollout] = gather_object(self._local_rollouts)
        return [replace(rollout, reward=reward) for rollout, reward in zip(rollouts, self._rewards, strict=True)]

    def _generate_single_turn(
        self, prompt_ids: Any, images: Any, multimodal_fields: Any, num_generations: int, has_tool_images: bool = False
    ) -> tuple[Any, Any]:
        # a vLLM server generates a whole group from the first of `num_generations` prompts
        count = 1 if self._one_response_per_prompt else num_generations
        result: tuple[Any, Any] = super()._generate_single_turn(
            prompt_ids, images, multimodal_fields, count, has_tool_images
        )
        return result

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: list[Any], completions: list[Any], completion_ids_list: list[Any]
    ) -> torch.Tensor:
        """Score N responses, over all ranks. N x F; a row is NaN if a required reward is missing."""
        if self.rubric_reward is not None:
            self.rubric_reward.applies_penalties = self.model.training
        completed = self._refiller.take_scores()
        if completed is not None:
            rewards, rollouts = completed
            self._rewards = [rollout.reward for rollout in rollouts]
            self._set_function_rewards(rewards)
            first = self.accelerator.process_index * len(prompts)
            self._local_rollouts = rollouts[first : first + len(prompts)]
            return rewards
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        finite = torch.isfinite(rewards)
        missing = ~finite[:, self._required].all(dim=1) | torch.isinf(rewards).any(dim=1)
        self._log_missing((~finite).sum(dim=0).tolist(), len(rewards))
        rewards = rewards.masked_fill(missing.unsqueeze(1), torch.nan)
        totals = (rewards * self.reward_weights.to(rewards.device)).nansum(dim=1).tolist()
        self._rewards = [None if absent else total for absent, total in zip(missing.tolist(), totals, strict=True)]
        self._set_function_rewards(rewards)
        assert self._sampled is not None
        self._local_rollouts = [Rollout(tokens=len(ids)) for ids in completion_ids_list]
        generated = GeneratedRows(inputs, self._sampled.generated[0], completion_ids_list)
        for reader in self._readers:
            self._local_rollouts = reader.read(self._local_rollouts, generated)
        return rewards

    def _set_function_rewards(self, rewards: torch.Tensor) -> None:
        by_function = zip(self.reward_func_names, rewards.T.tolist(), strict=True)
        self._function_rewards = {name: [None if math.isnan(one) else one for one in own] for name, own in by_function}

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        inputs = [dict(row) for row in inputs] if self._refiller.active else inputs  # refilling replaces rows
        self._inputs = inputs
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        mode = "train" if self.model.training else "eval"
        size = self.num_generations if mode == "train" else self.num_generations_eval
        rollouts = self.gathered_rollouts()
        batch = AdvantageBatch.from_rollouts(self.method, rollouts, size, self._memory)
        if mode == "train" and self._refiller.groups is not None:  # also remember the groups that were replaced
            self._memory = self.method.update_memory(self._memory, self._refiller.groups)
            self._add_metrics(self._refiller.metrics)
        elif mode == "train":
            self._memory = batch.memory
        first = self.accelerator.process_index * len(self._local_rollouts)
        own = slice(first, first + len(self._local_rollouts))
        kept = torch.tensor(batch.kept[own], device=output["completion_ids"].device)
        if not self.args.uses_trl_advantages:
            output["advantages"] = batch.tensor(own, output["completion_ids"])
            self._log_advantages(batch.means)
        if self.method.uses_certainty:
            self._log_rewards(batch.rewards, size, mode)
        output["completion_mask"] = output["completion_mask"] * kept.unsqueeze(1).to(output["completion_mask"].dtype)
        mask = output["completion_mask"] * output.get("tool_mask", 1)
        output["num_items_in_batch"] = self.accelerator.gather(mask.sum()).sum()
        assert self._sampled is not None
        added = self._generation.loss_inputs(self._sampled, output)
        internalization = self._generation.internalization(self._sampled, output, added)
        output.update(added)
        output.update(self.method.sampling_weights(output))
        measured = {**batch.metrics, **self._sampled.metrics, **internalization}
        self._add_metrics(measured)
        scored = ScoredGeneration(
            rewards=batch.rewards,
            functions=self._function_rewards,
            group_size=size,
            completions=self._sampled.completions,
            first=first,
            off_policy=self._sampled.off_policy,
            training=mode == "train",
            unpenalised=batch.rewards
            if self.method.uses_certainty
            else [_unpenalised(rollout) for rollout in rollouts],
            judged=[rollout.judged for rollout in rollouts],
            correct=[rollout.correct for rollout in rollouts],
            step=self.state.global_step,
            reward=self.rubric_reward,
        )
        for callback in self._generation_callbacks:
            measured |= (found := callback.on_scored(scored))
            self._add_metrics(found)
        if mode == "train":
            self._warn_without_steps(rollouts)
            self._measure_reporter.report(measured | (self._refiller.metrics if self._refiller.active else {}))
        return output

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        self._loss_inputs = dict(inputs)  # the same inputs serve several iterations
        self._skip_empty_steps.observe(inputs)
        self._entropy_bonus.begin()
        try:
            loss: torch.Tensor = super()._compute_loss(model, self._loss_inputs)
        finally:
            self._loss_inputs = None
        return self._entropy_bonus.correct(loss, inputs)

    def get_high_entropy_mask(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Choose the tokens that the loss is restricted to, and restrict the entropy bonus to the same tokens."""
        mask: torch.Tensor = super().get_high_entropy_mask(*args, **kwargs)
        self._entropy_bonus.restrict_to(mask)
        return mask

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        logps, entropies, auxiliary = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._loss_inputs is not None:
            self._entropy_bonus.observe(entropies)
            self._log_loss_metrics(logps, self._loss_inputs)
            training = self.model.training
            callback_inputs = self._loss_inputs
            if "ref_per_token_logps" not in callback_inputs and any(
                callback.needs_reference_logps(training) for callback in self._generation_callbacks
            ):
                compute = super()._get_per_token_logps_and_entropies
                callback_inputs = {
                    **callback_inputs,
                    "ref_per_token_logps": self.frozen_policy.log_probabilities(compute, args[1:], kwargs),
                }
            for callback in self._generation_callbacks:
                self._add_metrics(callback.on_loss(logps.detach(), callback_inputs, training))
            self._loss_inputs.update(self.method.override_loss_inputs(logps, self._loss_inputs))
        return logps, entropies, auxiliary

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        callbacks = {
            name: saved for name, callback in self._named_callbacks.items() if (saved := callback.state()) is not None
        }
        if self.args.should_save:
            state = {} if self.rubric_reward is None else self.rubric_reward.state()
            memory = self.method.as_json(self._memory)
            state |= {} if memory is None else {"method": memory}
            state |= {"callbacks": callbacks} if callbacks else {}
            state |= self._refiller.state()
            folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            (folder / STATE_FILE).write_text(json.dumps(state, indent=2), encoding="utf-8")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        path = Path(checkpoint or "") / STATE_FILE
        if checkpoint is not None and path.exists():
            state = json.loads(path.read_text(encoding="utf-8"))
            if self.rubric_reward is not None:
                self.rubric_reward.load_state(state)
            self._refiller.load_state(state)
            if "method" in state:
                self._memory = self.method.from_json(state["method"])
            for name, callback in self._named_callbacks.items():
                if name in state.get("callbacks", {}):
                    callback.load_state(state["callbacks"][name])

    @property
    def _generation_callbacks(self) -> list[GenerationCallback]:
        return [callback for callback in self.callback_handler.callbacks if isinstance(callback, GenerationCallback)]

    @property
    def _named_callbacks(self) -> dict[str, GenerationCallback]:
        """The callbacks by the name of their state in a checkpoint: the class name, numbered from the second on."""
        named: dict[str, GenerationCallback] = {}
        for callback in self._generation_callbacks:
            name = type(callback).__name__
            alike = sum(type(one) is type(callback) for one in named.values())
            named[f"{name}_{alike + 1}" if alike else name] = callback
        return named

    def _add_metrics(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._metrics["train" if self.model.training else "eval"][name].append(value)

    def _log_loss_metrics(self, logps: torch.Tensor, inputs: dict[str, Any]) -> None:
        for name, (total, count) in self.method.loss_metrics(logps, inputs).items():
            sums = self.accelerator.reduce(torch.stack([total.float(), count.float()]), reduction="sum")
            if sums[1] > 0:
                self._add_metrics({name: (sums[0] / sums[1]).item()})

    def _required_columns(self, names: Sequence[str]) -> list[int]:
        """Return the reward columns without which a response is left out: the rubric's, and those named."""
        unknown = [name for name in names if name not in self.reward_func_names]
        if unknown:
            raise ValueError(
                f"required_rewards contains {unknown[0]!r}, which is not a reward function; the reward functions are "
                + ", ".join(self.reward_func_names)
            )
        return [
            column
            for column, (function, name) in enumerate(zip(self.reward_funcs, self.reward_func_names, strict=True))
            if isinstance(function, RubricReward) or name in names
        ]

    def _log_missing(self, missing: Sequence[int], rows: int) -> None:
        """Log each reward function's share of missing rewards, and warn about required ones."""
        for column, (name, count) in enumerate(zip(self.reward_func_names, missing, strict=True)):
            self._add_metrics({f"rewards/{name}/missing": count / rows})
            if count and column in self._required and not isinstance(self.reward_funcs[column], RubricReward):
                logger.warning(
                    "reward function %r is required and gave no reward for %d of %d responses; they are left out of "
                    "the loss",
                    name,
                    count,
                    rows,
                )

    def _warn_without_steps(self, rollouts: Sequence[Rollout]) -> None:
        """Warn once if most judged responses of a step-wise method have no steps."""
        judged = [rollout for rollout in rollouts if rollout.judged is not None]
        without = sum(not rollout.spans for rollout in judged)
        if not self.method.stepwise or self._warned_without_steps or without <= len(judged) / 2:
            return
        self._warned_without_steps = True
        if self.accelerator.is_main_process:
            warn(
                f"{without} of {len(judged)} responses have no steps, so their criteria reward no step and method "
                f"{self.args.method!r} trains on little more than the final answer. Ask for steps in the prompts: "
                "dataset.map(lambda row: {'prompt': with_step_format(row['prompt'])}), with "
                "trainer_client.steps.with_step_format. Or pass RubricReward(steps='paragraphs'), which needs no "
                "headings. If the prompts ask for steps, watch steps/without: it should fall as the policy learns"
            )

    def _log_rewards(self, rewards: Sequence[float | None], size: int, mode: str) -> None:
        """Log the rewards that the method trains on in TRL's reward curves, in place of the functions' sum."""
        known = [reward for reward in rewards if reward is not None]
        equal = [len({reward for reward in group if reward is not None}) < 2 for group in groups_of(size, rewards)]
        curves = {
            "reward": statistics.fmean(known) if known else math.nan,
            "reward_std": statistics.stdev(known) if len(known) > 1 else 0.0,
            "frac_reward_zero_std": sum(equal) / len(equal),
        }
        for name, value in curves.items():
            self._metrics[mode][name][-1] = value

    def _log_advantages(self, means: list[float]) -> None:
        """Log the method's advantages in TRL's table of completions, in place of TRL's own."""
        logged = self._logs["advantages"]
        for _ in range(min(len(means), len(logged))):
            logged.pop()
        logged.extend(means)


def _unpenalised(rollout: Rollout) -> float | None:
    return None if rollout.reward is None else rollout.reward - rollout.penalty


_ROWS_CHECKED = 16
"""The number of rows of each dataset that are checked before training."""


def _check_datasets(reward: RubricReward, args: RubricGRPOConfig, given: Mapping[str, Any]) -> None:
    """Check the columns and the first rows of the datasets that a trainer is given.

    Raises:
        InvalidRequest: a row is invalid, or the trainer would remove columns; names the dataset and the row.
    """
    evaluated = given.get("eval_dataset")
    datasets = {"train_dataset": given.get("train_dataset")}
    datasets |= (
        {f"eval_dataset[{name!r}]": one for name, one in evaluated.items()}
        if isinstance(evaluated, Mapping)
        else {"eval_dataset": evaluated}
    )
    if args.remove_unused_columns:
        refuse_removed_columns(datasets.values(), reward.judged_columns)
    for name, dataset in datasets.items():
        if dataset is not None:
            try:
                reward.check_rows(islice(dataset, _ROWS_CHECKED))
            except InvalidRequest as error:
                raise InvalidRequest(f"{name}, {error}") from error


def _default_config(model: Any) -> RubricGRPOConfig:
    """The settings of a trainer that is given none, with an output folder named after the model, as in TRL."""
    name = model if isinstance(model, str) else getattr(model.config, "_name_or_path", "")
    return RubricGRPOConfig(f"{name.rstrip('/').split('/')[-1] or 'policy'}-GRPO")


def _rubric_reward(functions: Sequence[Any], name: str, method: Method) -> RubricReward | None:
    """Find the one `RubricReward`, and set the options that its user left to the method."""
    found = [function for function in functions if isinstance(function, RubricReward)]
    if not found and functions and method.uses_certainty:
        return None
    if len(found) != 1:
        raise ValueError(
            f"{len(found)} of {len(functions)} reward functions are a RubricReward; give exactly one. Other reward "
            "functions go beside it or into its `extra_rewards`"
        )
    reward = found[0].with_defaults(**method.reward_defaults)
    if method.stepwise and reward.mode != "stepwise":
        raise ValueError(
            f"the RubricReward has mode {reward.mode!r}, but method {name!r} needs the step of each verdict; leave the "
            "mode out, or use 'stepwise'"
        )
    by_accuracy = method.dynamic_sampling and method.filter_metric == "accuracy"
    by_accuracy = by_accuracy and reward.mode not in NEEDS_NO_RUBRIC | COMPARES_RESPONSES
    reward.needs_criteria = method.stepwise or method.uses_certainty or reward.mode == "stepwise" or by_accuracy
    reward.without_rubric = method.without_rubric
    return reward


class ResumableSampler(Sampler[int]):
    """Draws each epoch's order as an uninterrupted run does.

    TRL's sampler draws a new order each time it is iterated over. In a resumed run, it would begin again with the order
    of the first epoch, whatever the epoch.

    Args:
        sampler: a sampler that draws the order of epoch n when it is iterated over for the n-th time.
        epoch: returns the number of the epoch that begins or is resumed, from 0.
    """

    def __init__(self, sampler: Any, epoch: Callable[[], int]) -> None:
        self._sampler, self._epoch, self._drawn = sampler, epoch, 0

    def __iter__(self) -> Iterator[int]:
        """Yield the indices of the epoch."""
        for _ in range(self._drawn, self._epoch()):
            next(iter(self._sampler), None)
        self._drawn = self._epoch() + 1
        return iter(self._sampler)

    def __len__(self) -> int:
        """Return the number of indices in an epoch."""
        return len(self._sampler)


class SkipEmptySteps(TrainerCallback):
    """Drops the gradients of an optimizer step to which no token contributed.

    An optimizer with momentum moves the policy even when every gradient is zero. If no response of an optimizer step
    has a reward on any rank (the judge was unavailable, or every group was left out), the gradients are set to None,
    and the optimizer leaves the parameters unchanged. DeepSpeed keeps its own gradients: there they stay zero, but
    momentum still acts.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._tokens = 0
        self.skipped = 0

    def observe(self, inputs: Mapping[str, Any]) -> None:
        """Count the tokens of a micro-batch that contribute to the loss."""
        if self._trainer.model.training:
            self._tokens += int(inputs["completion_mask"].sum())

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Drop the gradients if no token contributed on any rank."""
        accelerator = self._trainer.accelerator
        total = accelerator.reduce(torch.tensor(float(self._tokens), device=accelerator.device), reduction="sum")
        self._tokens = 0
        if total.item() > 0:
            return
        self.skipped += 1
        logger.warning("step %d: %s, so the policy is not updated", state.global_step + 1, self._reason())
        for parameter in self._trainer.model.parameters():
            parameter.grad = None

    def _reason(self) -> str:
        """Say why no token contributed."""
        if not self._trainer.has_rewards:
            return "no response has a reward"
        if self._trainer.args.mask_truncated_completions:
            return (
                "every response with a reward was cut off at max_completion_length, and mask_truncated_completions "
                "leaves such responses out of the loss"
            )
        if self._trainer.method.filters_groups:
            return f"method {self._trainer.args.method!r} leaves every group out of the loss (see groups/uninformative)"
        return "every response with a reward is left out of the loss"
