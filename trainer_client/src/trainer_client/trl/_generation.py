"""What the policy generates from: plain prompts, scaffolded prompts, or refinements.

What the policy generates from: the plain prompts, scaffolded ones, or refinements of a group's best response.

Whatever was generated from, the policy trains on the plain prompt unless its method says otherwise. In evaluation all
prompts are plain.

Samples that are generated from prompts of their own, and trained on the plain ones.

TRL generates a whole group from its first prompt where a vLLM server does it, so here each sample is a group of one to
the generator. What it generated from is kept until the loss knows what to compare with.

A group's last response written anew from its best one, for methods that refine.

All ranks assess all groups alike, from what each had judged; the rank that holds a group's last response refines it.

TRL's environments where only a part of a batch is tokenised or generated.

TRL keeps a batch's environments and their tools in lists, one entry for each row, and walks them beside whatever
prompts it is given. A method that looks at one prompt, or generates some responses anew, narrows the lists first.
"""

import asyncio
import hashlib
import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, get_args

import torch
from accelerate.utils import gather_object
from trl.trainer.utils import pad

from trainer_client.refine import RefinementDecision, RefinementOutcome, assess_group, refinement_prompt
from trainer_client.trl._scoring import ScoredRow
from trainer_client.trl.methods import Rgr, Ruscarl
from trainer_client.trl.methods.base import SampleRequest, TrainingProgress
from trainer_client.wire import Criterion

_PER_ROW_ATTRIBUTES = ("_batch_environments", "environments", "_sync_tool_dicts", "_async_tool_dicts")
"""What TRL's trainer holds one entry of for each row of a batch, where it has environments."""


@contextmanager
def select_environments(trainer: Any, rows: Sequence[int]) -> Iterator[None]:
    """Have a trainer's environments be those of some rows of the batch, in this order, and then all of them again."""
    kept = {name: held for name in _PER_ROW_ATTRIBUTES if (held := getattr(trainer, name, None))}
    if trainer.environment_factories is None or not kept:
        yield
        return
    try:
        for name, held in kept.items():
            setattr(trainer, name, [held[row] for row in rows])
        yield
    finally:
        for name, held in kept.items():
            setattr(trainer, name, held)


def reset_environments(
    trainer: Any, rows: Sequence[int], inputs: Sequence[Mapping[str, Any]], num_padding: int
) -> None:
    """Reset the environments that a trainer has at hand, for responses that are generated anew.

    Args:
        trainer: within `select_environments` of these rows.
        rows: of the batch.
        inputs: the columns of all rows of the batch.
        spare: how many of the last rows are generated only so that all ranks generate equally many; these get
            environments of their own, so that those of the batch stay as they are.
    """
    if not trainer.environments:
        return
    for place, row in enumerate(rows):
        if place >= len(rows) - num_padding:
            instance = trainer.environment_factories[trainer._batch_environments[place]]()
            trainer.environments[place] = instance
            if trainer.tools:
                trainer._sync_tool_dicts[place], trainer._async_tool_dicts[place] = _tools(trainer, instance)
        columns = dict(inputs[row])
        if trainer._multi_environment:
            columns.pop("environment", None)
        trainer.environments[place].reset(**columns)


def _tools(trainer: Any, instance: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give the tools that a rollout in an environment can call, those that are awaited apart."""
    members = inspect.getmembers(type(instance), predicate=inspect.isfunction)
    names = [name for name, _ in members if name not in ("reset", "get_reward") and not name.startswith("_")]
    tools = [*trainer._standalone_tools, *(getattr(instance, name) for name in names)]
    awaited = {tool.__name__: tool for tool in tools if inspect.iscoroutinefunction(tool)}
    return {tool.__name__: tool for tool in tools if tool.__name__ not in awaited}, awaited


GenerationOutput = tuple[Any, ...]
"""What TRL's `_generate` gives: prompt ids, completion ids, tool mask, completions, log-probabilities, and more."""
_COMPLETION_IDS, _TOOL_MASK, COMPLETIONS, _LOGPS = 1, 2, 3, 4


class Policy(Protocol):
    """What refining needs of a trainer."""

    @property
    def group_size(self) -> int:
        """G."""

    def first(self, rows: int) -> int:
        """Give the place of this rank's first row among those of all ranks, each rank having as many."""

    def judge(
        self, prompts: list[Any], completions: list[Any], ids: list[Any], columns: Mapping[str, list[Any]]
    ) -> Sequence[ScoredRow]:
        """Have responses judged by the rubric alone; to be called on all ranks."""

    def fits(self, prompt: Any, row: int) -> bool:
        """Whether a row's prompt leaves room for a response."""

    def generate_each(self, prompts: list[Any], rows: Sequence[int], num_padding: int) -> GenerationOutput:
        """Generate one response to each prompt; to be called on all ranks with equally many.

        Args:
            prompts: what is generated from.
            rows: the row of this rank that each belongs to.
            spare: how many of the last ones are only there to be as many.
        """


class GroupMember(NamedTuple):
    """One judged response of a group, as other ranks are told of it."""

    place: int
    reward: float | None
    scores: tuple[float | None, ...]
    criteria: tuple[Criterion, ...]
    text: str


@dataclass(frozen=True, slots=True)
class RefinedBatch:
    """What came of refining: the generated responses, which of this rank's are refined, and shares for the log."""

    generated: GenerationOutput
    rows: list[bool]
    metrics: Mapping[str, float]


def refine_last(
    policy: Policy,
    method: Rgr,
    prompts: Sequence[Any],
    inputs: Sequence[Mapping[str, Any]],
    generated: GenerationOutput,
) -> RefinedBatch:
    """Replace the last response of each group that needs it by a refined one.

    A group stays as it is where its best response satisfies all criteria, where none is known to fail, where none has
    a reward, and where the refinement's prompt would not fit the model; each is counted.

    Args:
        policy: what samples, judges and generates.
        method: which criteria are looked at, and whether every group is refined.
        prompts, inputs: of this rank's rows.
        generated: what was sampled for them.
    """
    size = policy.group_size
    places = [policy.first(len(prompts)) + row for row in range(len(prompts))]
    judged = [row for row, place in enumerate(places) if place % size < size - 1]
    scored = _judge(policy, judged, prompts, inputs, generated)
    members = gather_object([_member(places[row], one, method) for row, one in zip(judged, scored, strict=True)])
    groups: dict[int, list[GroupMember]] = {}
    for member in sorted(members):
        groups.setdefault(member.place // size, []).append(member)
    assessed = {number: _assess(group) for number, group in groups.items()}
    outcomes = Counter(assessment.outcome for assessment in assessed.values())
    refinement_prompts = {
        row: _prompt(prompts[row], groups[place // size], assessed[place // size], method.instruction)
        for row, place in enumerate(places)
        if place % size == size - 1 and _needs_refinement(assessed[place // size], method)
    }
    fitting_prompts = {row: prompt for row, prompt in refinement_prompts.items() if policy.fits(prompt, row)}
    result = _generate(policy, prompts, fitting_prompts, generated)
    counted = gather_object([(len(fitting_prompts), len(refinement_prompts) - len(fitting_prompts))])
    metrics = {f"rgr/{outcome}": outcomes[outcome] / len(groups) for outcome in get_args(RefinementOutcome)}
    metrics["rgr/refined"] = sum(refined for refined, _ in counted) / (len(groups) * size)
    metrics["rgr/too_long"] = sum(long for _, long in counted) / len(groups)
    return RefinedBatch(result, [row in fitting_prompts for row in range(len(prompts))], metrics)


def _judge(
    policy: Policy,
    rows: Sequence[int],
    prompts: Sequence[Any],
    inputs: Sequence[Mapping[str, Any]],
    generated: GenerationOutput,
) -> Sequence[ScoredRow]:
    """Have some rows judged by the rubric alone; on all ranks, also where there are none."""
    columns = {name: [inputs[row][name] for row in rows] for name in inputs[0] if name != "prompt"}
    return policy.judge(
        [prompts[row] for row in rows],
        [generated[COMPLETIONS][row] for row in rows],
        [generated[_COMPLETION_IDS][row] for row in rows],
        columns,
    )


def _member(place: int, row: ScoredRow, method: Rgr) -> GroupMember:
    if row.answer is None or row.criteria is None:
        return GroupMember(place, None, (), (), row.text)
    scores_by_criterion = {verdict.criterion: verdict.score for verdict in row.answer.verdicts}
    criteria = tuple(criterion for criterion in row.criteria if method.assesses(criterion))
    reward = row.answer.reward if row.answer.unpenalised is None else row.answer.unpenalised
    return GroupMember(place, reward, tuple(scores_by_criterion.get(c.id) for c in criteria), criteria, row.text)


def _assess(group: Sequence[GroupMember]) -> RefinementDecision:
    """Assess a group by the criteria that all with a reward were judged by: a group has one rubric."""
    criteria = next((member.criteria for member in group if member.reward is not None), ())
    scores = [member.scores if member.reward is not None else [None] * len(criteria) for member in group]
    return assess_group([member.reward for member in group], criteria, scores)


def _needs_refinement(assessment: RefinementDecision, method: Rgr) -> bool:
    return assessment.outcome == "refine" or (method.always_refines and assessment.best is not None)


def _prompt(prompt: Any, group: Sequence[GroupMember], assessment: RefinementDecision, instruction: str) -> Any:
    assert assessment.best is not None
    best = group[assessment.best]
    failed = [best.criteria[index] for index in assessment.failed]
    return refinement_prompt(prompt, best.text, failed, instruction=instruction)


def _generate(
    policy: Policy, prompts: Sequence[Any], fitting_prompts: Mapping[int, Any], generated: GenerationOutput
) -> GenerationOutput:
    """Generate refined responses in place of what was sampled; equally many on all ranks, as generation needs it."""
    most = max(gather_object([len(fitting_prompts)]))
    if most == 0:
        return generated
    num_padding = most - len(fitting_prompts)
    regenerated = policy.generate_each(
        [*fitting_prompts.values(), *[prompts[0]] * num_padding], [*fitting_prompts, *[0] * num_padding], num_padding
    )
    result = list(generated)
    for column in (_COMPLETION_IDS, _TOOL_MASK, COMPLETIONS, _LOGPS):
        if result[column] is not None:
            result[column] = list(result[column])
            for place, row in enumerate(fitting_prompts):
                result[column][row] = regenerated[column][place]
    return tuple(result)


def sample_requests(
    prompts: Sequence[Any], criteria: Sequence[tuple[Criterion, ...]], first: int, group_size: int
) -> list[SampleRequest]:
    """Say which sample of which group each row is.

    Args:
        prompts, criteria: of the rows of this rank.
        first: the place of the first of them among the rows of all ranks.
        group_size: G.
    """
    return [
        SampleRequest(prompt, prompt_id(prompt), own, (first + row) % group_size + 1, group_size)
        for row, (prompt, own) in enumerate(zip(prompts, criteria, strict=True))
    ]


def prompt_id(prompt: Any) -> str:
    """Name a prompt by what is in it."""
    return hashlib.sha256(json.dumps(prompt, sort_keys=True, default=str).encode()).hexdigest()[:16]


def current_progress(trainer: Any) -> TrainingProgress:
    """Say when in a run this is."""
    return TrainingProgress(trainer.state.global_step + 1, max(trainer.state.max_steps, 1), trainer.args.seed)


def log_probabilities_after(trainer: Any, prompt_ids: Sequence[Sequence[int]], output: dict[str, Any]) -> torch.Tensor:
    """Compute log pi of a batch's completions after other prompts than the batch has. B x T."""
    device = output["completion_ids"].device
    rows = [torch.tensor(ids) for ids in prompt_ids]
    ids = pad(rows, padding_value=trainer._tokenizer.pad_token_id, padding_side="left").to(device)
    mask = pad([torch.ones_like(row) for row in rows], padding_value=0, padding_side="left").to(device)
    with torch.no_grad():
        logps, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model,
            torch.cat([ids, output["completion_ids"]], dim=1),
            torch.cat([mask, output["completion_mask"]], dim=1),
            output["completion_ids"].size(1),
            batch_size=trainer.args.per_device_train_batch_size,
        )
    result: torch.Tensor = logps
    return result


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
