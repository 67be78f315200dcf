"""Callbacks: the hook for scored generations, the papers' training measures, and monitors of a run.

`TrainingMeasures` logs, for each generation batch, the measures that the papers report during training. It uses data
that the trainer already has: no response is sampled or judged for it. `trainer_client.measures` has the mathematics.

`JudgeSleepCallback` renews the lease of a judge that sleeps while the trainer needs the memory.

`JudgeWeightsCallback` has the judge follow the policy, which then judges itself.

`MonitorCallback` watches a run's monitors while it trains, re-judges a control set, and stops the run on a finding.
"""

import logging
import math
import shutil
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from accelerate.utils import broadcast_object_list, gather_object
from transformers import TrainerCallback

from trainer_client.client.calls import GroupLike, RubricLike, verdicts_request
from trainer_client.client.keywords import VerdictKeywords
from trainer_client.client.sync import Client
from trainer_client.errors import AdjudgeError, NotFound, WeightsChanged
from trainer_client.measures import best_of_n, loops, novelty, pass_at_k, self_bleu
from trainer_client.trl.config import RubricGRPOConfig
from trainer_client.trl.methods.base import groups_of
from trainer_client.trl.reward import RubricReward
from trainer_client.trl.scoring.context import run_of
from trainer_client.trl.scoring.waiting import END_LEASE_S
from trainer_client.wire.judges import JudgeWeights
from trainer_client.wire.rewards import CONTROL_SUFFIX
from trainer_client.wire.runs import MonitorFinding, MonitorName, MonitorReport


@dataclass(frozen=True, slots=True)
class ScoredGeneration:
    """A scored generation batch: N responses over all ranks, n of them on this rank.

    Attributes:
        rewards: N rewards that the method computes advantages from, G consecutive ones per prompt; None where missing.
        functions: N rewards of each reward function, by the function's name.
        group_size: G.
        completions: n responses as the reward functions receive them, text or messages.
        first: the index among the N of this rank's first response.
        off_policy: for each of the n responses, whether it was generated from another prompt than the one it is
            trained on; None if all were generated from their own prompts.
        training: True for a training batch, False for an evaluation batch.
        unpenalised: N values of `rewards` before length and truncation penalties; None if unknown.
        judged: N rewards of the judge before penalties, whatever the method trains on; None without a judge.
        correct: for each of the N responses, whether the criteria of kind `answer` are satisfied; None if there are
            none or if missing verdicts decide. None in place of the list if unknown.
        step: the number of optimizer steps before this batch.
        reward: the trainer's `RubricReward`; None without one. Its `last` holds the n judged responses, followed by
            those of each further round of refilling.
    """

    rewards: Sequence[float | None]
    functions: Mapping[str, Sequence[float | None]]
    group_size: int
    completions: Sequence[Any]
    first: int
    off_policy: Sequence[bool] | None
    training: bool
    unpenalised: Sequence[float | None] | None = None
    judged: Sequence[float | None] | None = None
    correct: Sequence[bool | None] | None = None
    step: int = 0
    reward: RubricReward | None = None


class GenerationCallback(TrainerCallback):
    """A callback that measures generation batches. Its methods return metrics to log, by name.

    The methods are called on all ranks, so they may use collective operations. The log shows the values of the main
    process, averaged over a logging step.
    """

    def needs_reference_logps(self, training: bool) -> bool:
        """Whether `on_loss` needs the reference model's log-probabilities even if TRL does not compute them.

        This loads a copy of the policy before training, and adds a forward pass of it for each micro-batch.
        """
        return False

    def state(self) -> Mapping[str, Any] | None:
        """Return the state to save in a checkpoint, as JSON-compatible data; None if there is none."""
        return None

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint."""

    def on_scored(self, generation: ScoredGeneration) -> Mapping[str, float]:
        """Measure a generation batch. Called once per batch."""
        return {}

    def on_loss(self, logps: torch.Tensor, inputs: Mapping[str, torch.Tensor], training: bool) -> Mapping[str, float]:
        """Measure a micro-batch when its loss is computed.

        Args:
            logps: B x T, log pi of the tokens under the current policy, without a gradient.
            inputs: the inputs of the loss, including `completion_mask`, and `ref_per_token_logps` if beta is not 0 or
                a callback needs it.
            training: True for a training batch, False for an evaluation batch.
        """
        return {}


_ROUNDING = 1e-6
"""Tolerance for comparing the trainer's float32 rewards with a threshold."""


class TrainingMeasures(GenerationCallback):
    """Logs these measures under `measures/`, each only if there is data for it.

    - `zero_rewards`: the share of rewarded responses whose reward before penalties is 0 or less.
    - `off_policy`: the share of responses generated from another prompt than the one they are trained on: those that
      `rgr` refined, or for which `ruscarl` showed criteria.
    - `pass_at_K`: the probability that one of K samples is right, averaged over the groups in which it is known for at
      least K responses. The verdict on the answer (criteria of kind `answer`) decides; if the rubric has none, whether
      the judge's own reward before penalties reaches the threshold. For `dro` that reward is the gate.
    - `best_of_K`: the expected best reward of K samples, before penalties, of the rewards that the method trains on.
    - `diversity`: 1 - Self-BLEU, averaged over the first few groups.
    - `loops`: the share of responses that repeat themselves in a loop.
    - `novelty/mean`, `novelty/median`, `novelty/above_2`, `…_10`, `…_100`: how much more probable responses are under
      the policy than under the reference model, by mean log-likelihood: mean and median of the ratios, and the shares
      above 2, 10 and 100, of the responses in the loss. If `beta` is 0, TRL computes no reference log-probabilities;
      `novelty=True` then loads a copy of the policy before training.

    Args:
        ks: the values of K, each at least 1; those above the group size are left out.
        correct: the name, as TRL logs it, of a reward function that decides which responses are right, in place of
            the judge.
        threshold: the least reward of a right response, if rewards decide.
        diversity_groups: the number of groups that `diversity` compares, whose texts are sent to all ranks; 0 turns it
            off.
        loops: whether to measure loops.
        novelty: True measures novelty always, False never, None only if `beta` is above 0, where it costs nothing.

    Raises:
        ValueError: a number is out of range, the trainer is not a `RubricGRPOTrainer`, or the reward function is
            unknown.
    """

    def __init__(
        self,
        *,
        ks: Sequence[int] = (1, 2, 4, 8),
        correct: str | None = None,
        threshold: float = 1.0,
        diversity_groups: int = 4,
        loops: bool = True,
        novelty: bool | None = None,
    ) -> None:
        if any(k < 1 for k in ks) or diversity_groups < 0 or not math.isfinite(threshold):
            raise ValueError(
                f"ks is {tuple(ks)}, diversity_groups is {diversity_groups} and threshold is {threshold}; ks must be "
                "at least 1, diversity_groups must not be negative, and threshold must be finite"
            )
        self._ks, self._correct, self._threshold = tuple(ks), correct, threshold
        self._diversity_groups, self._loops, self._novelty = diversity_groups, loops, novelty
        self._remaining: dict[bool, int] = {}
        self._likelihoods: defaultdict[bool, list[tuple[float, float]]] = defaultdict(list)

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Reject trainers that would never call this callback."""
        if not isinstance(args, RubricGRPOConfig):
            raise ValueError("TrainingMeasures needs a RubricGRPOTrainer; other trainers do not call it")

    def needs_reference_logps(self, training: bool) -> bool:
        """Whether the novelty of the current generation batch is wanted and not measured yet."""
        return self._novelty is True and self._remaining.get(training, 0) > 0

    def on_scored(self, generation: ScoredGeneration) -> Mapping[str, float]:
        """Measure a generation batch, and prepare to collect its likelihoods."""
        self._remaining[generation.training], self._likelihoods[generation.training] = len(generation.completions), []
        gathered: list[_RankMeasures] = gather_object([self._measure_rank(generation)])
        rows = sum(share.rows for share in gathered)
        measured: dict[str, float | None] = _reward_measures(generation, self._correctness(generation), self._ks)
        if generation.off_policy is not None:
            measured["off_policy"] = sum(share.off_policy for share in gathered) / rows
        if self._loops:
            measured["loops"] = sum(share.looping for share in gathered) / rows
        texts = [text for share in gathered for text in share.texts]
        measured["diversity"] = _mean(
            [1.0 - self_bleu(group) for group in groups_of(generation.group_size, texts) if len(group) > 1]
        )
        return {f"measures/{name}": value for name, value in measured.items() if value is not None}

    def on_loss(self, logps: torch.Tensor, inputs: Mapping[str, torch.Tensor], training: bool) -> Mapping[str, float]:
        """Collect a micro-batch's likelihoods, and measure novelty when the generation batch is complete."""
        reference = inputs.get("ref_per_token_logps")
        if self._novelty is False or reference is None or self._remaining.get(training, 0) <= 0:
            return {}
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        means = [_masked_mean(values, mask) for values in (logps, reference)]
        pairs = [(new, old) for new, old in torch.stack(means, dim=1).tolist() if math.isfinite(new + old)]
        self._likelihoods[training] += pairs
        self._remaining[training] -= len(mask)
        if self._remaining[training] > 0:
            return {}
        gathered: list[tuple[float, float]] = gather_object(self._likelihoods[training])
        if not gathered:
            return {}
        ratios = novelty([new for new, _ in gathered], [old for _, old in gathered])
        shares = {f"above_{limit:g}": count / len(gathered) for limit, count in ratios.counts.items()}
        measured = {"mean": ratios.mean, "median": ratios.median, **shares}
        return {f"measures/novelty/{name}": value for name, value in measured.items()}

    def _measure_rank(self, generation: ScoredGeneration) -> "_RankMeasures":
        texts = [_text(completion) for completion in generation.completions]
        compared = max(0, self._diversity_groups * generation.group_size - generation.first)
        looping = sum(map(bool, map(loops, texts))) if self._loops else 0
        return _RankMeasures(len(texts), sum(generation.off_policy or ()), looping, texts[:compared])

    def _correctness(self, generation: ScoredGeneration) -> list[bool | None]:
        decided: Sequence[bool | None] = [None] * len(generation.rewards)
        if self._correct is None:
            rewards = generation.rewards if generation.judged is None else generation.judged
            decided = generation.correct or decided
        elif self._correct in generation.functions:
            rewards = generation.functions[self._correct]
        else:
            raise ValueError(
                f"correct is {self._correct!r}, which is not a reward function; the reward functions are "
                f"{', '.join(generation.functions)}"
            )
        reached = [None if reward is None else reward >= self._threshold - _ROUNDING for reward in rewards]
        return [other if own is None else own for own, other in zip(decided, reached, strict=True)]


class _RankMeasures(NamedTuple):
    """One rank's counts of responses, and the texts that `diversity` compares."""

    rows: int
    off_policy: int
    looping: int
    texts: list[str]


def _reward_measures(
    generation: ScoredGeneration, right: Sequence[bool | None], ks: Sequence[int]
) -> dict[str, float | None]:
    """Compute the measures that need only rewards, which are the same on all ranks."""
    rewards = generation.rewards if generation.unpenalised is None else generation.unpenalised
    known = [reward for reward in rewards if reward is not None]
    measured: dict[str, float | None] = {"zero_rewards": _mean([float(reward <= _ROUNDING) for reward in known])}
    size = generation.group_size
    verdicts = [[one for one in group if one is not None] for group in groups_of(size, right)]
    for k in ks:
        measured[f"pass_at_{k}"] = _mean([pass_at_k(len(own), sum(own), k) for own in verdicts if len(own) >= k])
        best = [best_of_n(group, k) for group in groups_of(size, rewards)]
        measured[f"best_of_{k}"] = _mean([value for value in best if value is not None])
    return measured


def _masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return B means over the tokens of a B x T mask; NaN for rows without tokens."""
    return torch.where(mask.bool(), values.detach().float(), 0.0).sum(dim=1) / mask.sum(dim=1)


def _text(completion: Any) -> str:
    if isinstance(completion, str):
        return completion
    contents = (message.get("content") for message in completion if message.get("role") == "assistant")
    return "\n\n".join(content for content in contents if isinstance(content, str))


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ControlSet:
    """Responses that are judged again and again, to notice when the judge changes.

    Attributes:
        groups: prompts with fixed responses, such as a few dozen of the first step.
        rubric: the rubric, as for `Client.verdicts`; None if each group has its own.
        every_steps: judge them again every so many training steps.
        deadline_s: the seconds that the judge has for all of them.
        options: further options of `Client.verdicts`, which should be those that the run is judged with.
    """

    groups: Sequence[GroupLike]
    rubric: RubricLike | None = None
    every_steps: int = 50
    deadline_s: float = 600.0
    options: Mapping[str, Any] = field(default_factory=dict)


class MonitorCallback(GenerationCallback):
    """Fetches what the monitors find in the run, logs it, and stops training on the findings that you choose.

    It works with every trainer of TRL and transformers whose rewards are judged under the run's name. In a
    `RubricGRPOTrainer` it also logs the numbers of findings, under `monitors/critical`, `…/warning` and `…/info`.
    If the service cannot be asked, it warns and training continues.

    Args:
        client: the client of the run's rewards, or the service's address.
        run: the run's name; defaults to the client's run, or else to the trainer's `run_name`, or to the name that
            `RubricReward` makes for a run without one.
        every_steps: ask every so many training steps.
        stop_on: stop on a finding of these monitors, unless it is only `info`.
        control: responses to judge again every so many steps.

    Attributes:
        report: the last report; None before the first.
        stopped_by: the finding that stopped training, if any.

    Raises:
        ValueError: a monitor is unknown, or a number of steps is below 1; after the first step: there is no run.
    """

    def __init__(
        self,
        client: Client | str,
        *,
        run: str | None = None,
        every_steps: int = 5,
        stop_on: Collection[MonitorName] = ("shadow_divergence", "gold_drift"),
        control: ControlSet | None = None,
    ) -> None:
        self._client = Client(client, run=run) if isinstance(client, str) else client
        name = self._client.run if run is None else run
        if unknown := set(stop_on) - {*get_args(MonitorName)}:
            raise ValueError(f"stop_on has {min(unknown)!r}; use some of {', '.join(get_args(MonitorName))}")
        if every_steps < 1 or (control is not None and control.every_steps < 1):
            raise ValueError("every_steps must be at least 1")
        self._run, self._every_steps, self._stop_on, self._control = (
            name or "",
            every_steps,
            frozenset(stop_on),
            control,
        )
        self._worker = ThreadPoolExecutor(1, "adjudge-control-set")
        self._judging: Future[None] | None = None
        self._known: set[tuple[str, str | None]] = set()
        self.report: MonitorReport | None = None
        self.stopped_by: MonitorFinding | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the name of the run from the trainer if none was given, and judge the control set for the first time."""
        self._run = self._run or run_of(args, state) or ""
        if state.is_world_process_zero and self._run:
            self._judge_control(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Fetch the findings, and stop training on all ranks if one of them says so."""
        step = state.global_step
        if not self._run:  # the first reward call has named the run
            self._run = run_of(args, state) or ""
            if not self._run:
                raise ValueError("monitors need the name of the run; pass run, or set run_name in the trainer's args")
            if state.is_world_process_zero:
                self._judge_control(step)
        if state.is_world_process_zero and self._control is not None and step % self._control.every_steps == 0:
            self._judge_control(step)
        if step % self._every_steps:
            return
        stopping: list[MonitorFinding | None] = [None]
        if state.is_world_process_zero:
            stopping = [self._ask()]
        (self.stopped_by,) = broadcast_object_list(stopping)
        if self.stopped_by is not None:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait for the control set."""
        self._worker.shutdown()

    def on_scored(self, generation: ScoredGeneration) -> Mapping[str, float]:
        """Log the numbers of findings of the last report."""
        if self.report is None:
            return {}
        found = [finding.severity for finding in self.report.findings]
        return {f"monitors/{severity}": float(found.count(severity)) for severity in ("critical", "warning", "info")}

    def _ask(self) -> MonitorFinding | None:
        """Fetch a report and log what is new in it; return the finding to stop on."""
        try:
            self.report = self._client.run_monitors(self._run)
        except NotFound:  # the ledger has no step yet
            return None
        except AdjudgeError as error:
            logger.warning("the monitors of run %r cannot be asked, and training continues: %s", self._run, error)
            return None
        for finding in self.report.findings:
            if (key := (finding.monitor, finding.subject)) not in self._known:
                self._known.add(key)
                level = logging.INFO if finding.severity == "info" else logging.WARNING
                logger.log(level, "step %d, %s: %s. %s", finding.step, finding.monitor, finding.message, finding.action)
        stopping = (one for one in self.report.findings if one.monitor in self._stop_on and one.severity != "info")
        finding_to_stop_on = next(stopping, None)
        if finding_to_stop_on is not None:
            logger.error("training stops: %s", finding_to_stop_on.message)
        return finding_to_stop_on

    def _judge_control(self, step: int) -> None:
        """Judge the control set in a thread, unless it is being judged already."""
        if self._control is not None and (self._judging is None or self._judging.done()):
            self._judging = self._worker.submit(self._send_control, self._control, step)

    def _send_control(self, control: ControlSet, step: int) -> None:
        options: VerdictKeywords = {"fresh": True, **control.options}  # type: ignore[typeddict-item]
        given = {
            "run": self._run + CONTROL_SUFFIX,
            "groups": control.groups,
            "rubric": control.rubric,
            "deadline_s": control.deadline_s,
            "step": step,
        }
        try:
            self._client.send(verdicts_request(given, options))
        except AdjudgeError as error:
            logger.warning("the control set of run %r could not be judged at step %d: %s", self._run, step, error)


class JudgeSleepCallback(TrainerCallback):
    """Keeps the judge asleep between batches of rewards, and lets it go at the end of training.

    It renews the lease of a `RubricReward` with `judge_lease_s` at each step, so that the lease need only be longer
    than a step. `RubricGRPOTrainer` has one; give it to any other trainer of TRL.
    """

    def __init__(self, reward: RubricReward) -> None:
        self._reward = reward

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Renew the lease."""
        self._hold(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Let the lease end, so that the judge returns to its resting state."""
        self._hold(state, END_LEASE_S)

    def _hold(self, state: Any, lease_s: float | None = None) -> None:
        if not state.is_world_process_zero:
            return
        try:
            self._reward.hold_sleep(lease_s)
        except AdjudgeError as error:
            logger.warning("the lease on the judge is not renewed: %s", error)


class JudgeWeightsCallback(TrainerCallback):
    """Has the judge follow the policy: each checkpoint's adapter becomes the judge's.

    It copies the adapter of every checkpoint (`save_steps` says how often) into the folder that the service loads
    adapters from, and has the judge load it. The policy must be a PEFT model, and the judge the same base model on an
    engine that takes PEFT adapters, such as vLLM. Give it to `RubricGRPOTrainer` or any other trainer of TRL.

    A failed change is only warned about: the judge keeps the weights before. Training stops if somebody else changes
    the judge's weights, because the rewards would then be those of another judge.

    Args:
        reward: the reward function, whose judge follows.
        folder: the service's folder of adapters, as this process sees it.
        name: the folder inside it for this run's adapters; defaults to the run's name.

    Attributes:
        weights: the weights that the judge has; None before the first checkpoint.

    Raises:
        ValueError: at the first checkpoint, if it has no adapter, or the run no name.
        WeightsChanged: somebody else changed the judge's weights.
    """

    def __init__(self, reward: RubricReward, folder: str | Path, *, name: str | None = None) -> None:
        self._reward, self._folder, self._name = reward, Path(folder), name
        self.weights: JudgeWeights | None = None

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Copy the checkpoint's adapter, and have the judge load it."""
        if not state.is_world_process_zero:
            return
        name = self._name or self._reward.run or run_of(args, state)
        if not name:
            raise ValueError("name is missing, and the run has none; pass name, which is a folder for its adapters")
        step = state.global_step
        adapter = f"{name}/step-{step}"
        _copy_adapter(Path(args.output_dir) / f"checkpoint-{step}", self._folder / adapter)
        try:
            self._load(f"step-{step}", adapter, step)
        except WeightsChanged:
            raise
        except AdjudgeError as error:
            logger.warning("the judge does not follow the policy to step %d: %s", step, error)

    def _load(self, version: str, adapter: str, step: int) -> None:
        """Have the judge load an adapter if it still has the weights of the step before, or was restarted."""
        present = self._reward.judge_weights()
        if present is None:
            raise ValueError("the client has a transport of its own; give RubricReward an address or another client")
        ours = present.tag if self.weights is None or present.version is None else self.weights.tag
        self.weights = self._reward.follow_policy(version, adapter, step=step, expected=ours)


def _copy_adapter(checkpoint: Path, to: Path) -> None:
    """Copy the files of an adapter, under a new name and then at once under their own."""
    files = [checkpoint / name for name in ("adapter_config.json", "adapter_model.safetensors")]
    if not all(file.is_file() for file in files):
        raise ValueError(
            f"{checkpoint} holds no LoRA adapter (adapter_config.json and adapter_model.safetensors); train a PEFT "
            "model, or load other weights into the judge with Client.load_judge_weights"
        )
    partial = to.with_name(f"{to.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for file in files:
        shutil.copyfile(file, partial / file.name)
    shutil.rmtree(to, ignore_errors=True)
    partial.rename(to)
