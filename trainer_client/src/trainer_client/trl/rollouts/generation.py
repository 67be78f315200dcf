"""What the policy generates from: plain prompts, scaffolded prompts, or refinements of a group's best response.

The policy is trained on the plain prompt, whatever it generated from, unless its method says otherwise. Evaluation uses
plain prompts only. With a vLLM server, TRL generates a whole group from its first prompt, so scaffolded samples are
generated as groups of one. To refine, all ranks assess all groups with the same result, and the rank that holds a
group's last response generates it again.

TRL keeps the environments of a batch and their tools in lists with one entry per row, and iterates over them in
parallel with the prompts that it is given. Code that tokenizes or generates only some rows selects their entries first.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args

import torch
from accelerate.utils import gather_object
from trl.trainer.utils import pad

from trainer_client.measures import self_internalization_gap
from trainer_client.refine import RefinementDecision, RefinementOutcome, assess_group, refinement_prompt
from trainer_client.rows.reading import prompt_digest
from trainer_client.trl.methods import Rgr, Ruscarl
from trainer_client.trl.methods.base import SampleRequest, TrainingProgress
from trainer_client.trl.scoring.results import ScoredRow
from trainer_client.wire import Criterion
from trainer_client.wire.runs import SELF_INTERNALIZATION_GAP

GenerationOutput = tuple[Any, ...]
"""The result of TRL's `_generate`: prompt ids, completion ids, tool mask, completions, log-probabilities, and more."""
COMPLETION_IDS, TOOL_MASK, COMPLETIONS, _LOGPS = 1, 2, 3, 4


class GeneratedRows(NamedTuple):
    """The columns of N rows, and the tokens of their prompts and completions."""

    inputs: Sequence[Mapping[str, Any]]
    prompt_ids: Sequence[Sequence[int]]
    completion_ids: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class SampledBatch:
    """Responses to a batch of prompts.

    Attributes:
        generated: the result of TRL's `_generate`, with the ids of the prompts that are trained on.
        generation_prompt_ids: the prompts that responses were generated from, if the policy's old probabilities are
            computed after them; otherwise None.
        refined: which responses are refined; None if the method does not refine.
        off_policy: which responses were generated from another prompt than the one they are trained on; None if the
            method never does this.
        metrics: metrics of the batch, by name.
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
    """Generates responses with a trainer's policy, in the way its method requires.

    Attributes:
        rubric_only_reward: judges responses that may be refined, without extra reward functions; None if the method
            does not refine.
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
        """Generate a response for each row of this rank, by TRL's own `_generate` or as the method requires."""
        training = self._trainer.model.training
        if training and isinstance(self._method, Ruscarl):
            return self._scaffolded(self._method, prompts, inputs)
        generated = generate(prompts)
        if not training or not isinstance(self._method, Rgr):
            return SampledBatch(generated)
        return refine_last(self, self._method, prompts, inputs, generated)

    def loss_inputs(self, sampled: SampledBatch, output: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Return the additional inputs of the loss that depend on how a batch was generated."""
        added: dict[str, torch.Tensor] = {}
        if sampled.refined is not None:
            added["refined"] = torch.tensor(sampled.refined, device=output["completion_ids"].device)
        if sampled.generation_prompt_ids is not None:
            added["old_per_token_logps"] = log_probabilities_after(self._trainer, sampled.generation_prompt_ids, output)
        return added

    def internalization(self, sampled: SampledBatch, output: dict[str, Any], added: dict[str, Any]) -> dict[str, float]:
        """Return the self-internalization gap of the scaffolded responses, where it costs nothing.

        It costs nothing if TRL computed the policy's probabilities after the plain prompts, and the ratio those after
        the scaffolded ones. A scaffold that decays closes the gap by itself, so it must be constant.
        """
        plain, shown = output.get("old_per_token_logps"), added.get("old_per_token_logps")
        if plain is None or shown is None or not isinstance(self._method, Ruscarl) or self._method.decay != "constant":
            return {}
        own: list[float] = []
        for row, off_policy in enumerate(sampled.off_policy or ()):
            tokens = output["completion_mask"][row].bool()
            gap = self_internalization_gap([plain[row][tokens].tolist()], [shown[row][tokens].tolist()])
            own += [gap] if off_policy and gap is not None else []
        gaps: list[float] = gather_object(own)
        return {SELF_INTERNALIZATION_GAP: sum(gaps) / len(gaps)} if gaps else {}

    def fits(self, prompt: Any, row: int) -> bool:
        """Whether a row's prompt leaves room for a response in the policy's context."""
        trainer = self._trainer
        context = trainer.args.vllm_max_model_length if trainer.use_vllm else None
        context = context or getattr(trainer.model.config.get_text_config(), "max_position_embeddings", None)
        with select_environments(trainer, [row]):
            ids = trainer._tokenize_prompts([prompt])[0][0]
        return context is None or len(ids) + trainer.max_completion_length <= context

    @property
    def group_size(self) -> int:
        """G."""
        return int(self._trainer.num_generations)

    def first(self, rows: int) -> int:
        """Return the index of this rank's first row among those of all ranks, if each rank has `rows`."""
        return int(self._trainer.accelerator.process_index) * rows

    def judge(
        self, prompts: list[Any], completions: list[Any], ids: list[Any], columns: Mapping[str, list[Any]]
    ) -> Sequence[ScoredRow]:
        """Judge responses by the rubric alone. Call it on all ranks."""
        trainer = self._trainer
        known = {"trainer_state": trainer.state, "log_metric": trainer.ignore_metric}
        self._run_coroutine(self.rubric_only_reward(prompts, completions, ids, **known, **columns))
        rows: Sequence[ScoredRow] = self.rubric_only_reward.last.rows
        return rows

    def generate_each(self, prompts: list[Any], rows: Sequence[int], num_padding: int) -> GenerationOutput:
        """Generate one response to each prompt. Call it on all ranks, with equally many prompts.

        `rows` are the rows of this rank that the prompts belong to. The last `num_padding` prompts only pad the list to
        the same length on all ranks.
        """
        generated: GenerationOutput = self._trainer.generate_each(prompts, rows, num_padding=num_padding)
        return generated

    def _scaffolded(self, method: Ruscarl, prompts: list[Any], inputs: Sequence[Mapping[str, Any]]) -> SampledBatch:
        trainer = self._trainer
        column = trainer.rubric_reward.column_of("rubric")
        rubrics = [None if column is None else row.get(column) for row in inputs]
        judged: list[tuple[Criterion, ...]] = self._run_coroutine(trainer.rubric_reward.criteria(rubrics))
        criteria = [tuple([one for one in each if not one.shadow]) for each in judged]  # the policy never sees shadows
        first, size = self.first(len(prompts)), self.group_size
        rows = [
            SampleRequest(prompt, prompt_digest(prompt)[:16], own, (first + row) % size + 1, size)
            for row, (prompt, own) in enumerate(zip(prompts, criteria, strict=True))
        ]
        step, total = trainer.state.global_step + 1, max(trainer.state.max_steps, 1)
        training_progress = TrainingProgress(step, total, trainer.args.seed)
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
    """Return the share of true flags over all ranks."""
    gathered: list[bool] = gather_object(list(flags))
    return sum(gathered) / len(gathered)


def log_probabilities_after(trainer: Any, prompt_ids: Sequence[Sequence[int]], output: dict[str, Any]) -> torch.Tensor:
    """Compute log pi of a batch's completions after other prompts than the batch's own. B x T."""
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


class GroupMember(NamedTuple):
    """One judged response of a group, as it is sent to other ranks."""

    place: int
    reward: float | None
    scores: tuple[float | None, ...]
    criteria: tuple[Criterion, ...]
    text: str


def refine_last(
    generator: RolloutGenerator,
    method: Rgr,
    prompts: Sequence[Any],
    inputs: Sequence[Mapping[str, Any]],
    generated: GenerationOutput,
) -> SampledBatch:
    """Replace the last response of each group that needs refinement by a refined one.

    A group stays unchanged if its best response satisfies all criteria, if no criterion is known to fail, if no
    response has a reward, or if the refinement's prompt does not fit the model. The metrics count each case.
    """
    size = generator.group_size
    places = [generator.first(len(prompts)) + row for row in range(len(prompts))]
    judged = [row for row, place in enumerate(places) if place % size < size - 1]
    scored = _judge(generator, judged, prompts, inputs, generated)
    members = gather_object([_member(places[row], one, method) for row, one in zip(judged, scored, strict=True)])
    groups: dict[int, list[GroupMember]] = {}
    for member in sorted(members):
        groups.setdefault(member.place // size, []).append(member)
    assessed = {number: _assess(group) for number, group in groups.items()}
    outcomes = Counter(assessment.outcome for assessment in assessed.values())
    refinement_prompts = {
        row: _prompt(prompts[row], groups[place // size], assessed[place // size], method.instruction)
        for row, place in enumerate(places)
        if place % size == size - 1
        and (assessed[place // size].outcome == "refine" or method.always_refines)
        and assessed[place // size].best is not None
    }
    fitting_prompts = {row: prompt for row, prompt in refinement_prompts.items() if generator.fits(prompt, row)}
    result = _generate(generator, prompts, fitting_prompts, generated)
    counted = gather_object([(len(fitting_prompts), len(refinement_prompts) - len(fitting_prompts))])
    metrics = {f"rgr/{outcome}": outcomes[outcome] / len(groups) for outcome in get_args(RefinementOutcome)}
    metrics["rgr/refined"] = sum(refined for refined, _ in counted) / (len(groups) * size)
    metrics["rgr/too_long"] = sum(long for _, long in counted) / len(groups)
    refined = [row in fitting_prompts for row in range(len(prompts))]
    return SampledBatch(result, refined=refined, off_policy=refined, metrics=metrics)


def _judge(
    generator: RolloutGenerator,
    rows: Sequence[int],
    prompts: Sequence[Any],
    inputs: Sequence[Mapping[str, Any]],
    generated: GenerationOutput,
) -> Sequence[ScoredRow]:
    """Judge some rows by the rubric alone. Every rank must call this, even without rows."""
    columns = {name: [inputs[row][name] for row in rows] for name in inputs[0] if name != "prompt"}
    return generator.judge(
        [prompts[row] for row in rows],
        [generated[COMPLETIONS][row] for row in rows],
        [generated[COMPLETION_IDS][row] for row in rows],
        columns,
    )


def _member(place: int, row: ScoredRow, method: Rgr) -> GroupMember:
    if row.answer is None or row.criteria is None:
        return GroupMember(place, None, (), (), row.text)
    scores_by_criterion = {verdict.criterion: verdict.score for verdict in row.answer.verdicts}
    criteria = tuple(criterion for criterion in row.criteria if method.assesses(criterion) and not criterion.shadow)
    reward = row.answer.reward if row.answer.unpenalised is None else row.answer.unpenalised
    return GroupMember(place, reward, tuple(scores_by_criterion.get(c.id) for c in criteria), criteria, row.text)


def _assess(group: Sequence[GroupMember]) -> RefinementDecision:
    """Assess a group by its criteria, which are the same for all members with a reward."""
    criteria = next((member.criteria for member in group if member.reward is not None), ())
    scores = [member.scores if member.reward is not None else [None] * len(criteria) for member in group]
    return assess_group([member.reward for member in group], criteria, scores)


def _prompt(prompt: Any, group: Sequence[GroupMember], assessment: RefinementDecision, instruction: str) -> Any:
    assert assessment.best is not None
    best = group[assessment.best]
    failed = [best.criteria[index] for index in assessment.failed]
    return refinement_prompt(prompt, best.text, failed, instruction=instruction)


def _generate(
    generator: RolloutGenerator, prompts: Sequence[Any], fitting_prompts: Mapping[int, Any], generated: GenerationOutput
) -> GenerationOutput:
    """Replace sampled responses by refined ones. All ranks generate equally many, as TRL requires."""
    most = max(gather_object([len(fitting_prompts)]))
    if most == 0:
        return generated
    num_padding = most - len(fitting_prompts)
    regenerated = generator.generate_each(
        [*fitting_prompts.values(), *[prompts[0]] * num_padding], [*fitting_prompts, *[0] * num_padding], num_padding
    )
    result = list(generated)
    for column in (COMPLETION_IDS, TOOL_MASK, COMPLETIONS, _LOGPS):
        if result[column] is not None:
            result[column] = list(result[column])
            for place, row in enumerate(fitting_prompts):
                result[column][row] = regenerated[column][place]
    return tuple(result)


_PER_ROW_ATTRIBUTES = ("_batch_environments", "environments", "_sync_tool_dicts", "_async_tool_dicts")
"""The attributes of TRL's trainer with one entry per row of a batch, if it has environments."""


@contextmanager
def select_environments(trainer: Any, rows: Sequence[int]) -> Iterator[None]:
    """Restrict a trainer's environments to some rows of the batch, in this order, within the context."""
    saved = {name: values for name in _PER_ROW_ATTRIBUTES if (values := getattr(trainer, name, None))}
    if trainer.environment_factories is None or not saved:
        yield
        return
    try:
        for name, values in saved.items():
            setattr(trainer, name, [values[row] for row in rows])
        yield
    finally:
        for name, values in saved.items():
            setattr(trainer, name, values)


def reset_environments(
    trainer: Any, rows: Sequence[int], inputs: Sequence[Mapping[str, Any]], num_padding: int
) -> None:
    """Reset the environments of these rows, within `select_environments`, before responses are generated again.

    The last `num_padding` rows only pad the list to the same length on all ranks. They get new environments, so that
    those of the batch stay unchanged.
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
    """Return the synchronous and the asynchronous tools that a rollout in an environment can call."""
    members = inspect.getmembers(type(instance), predicate=inspect.isfunction)
    names = [name for name, _ in members if name not in ("reset", "get_reward") and not name.startswith("_")]
    tools = [*trainer._standalone_tools, *(getattr(instance, name) for name in names)]
    awaited = {tool.__name__: tool for tool in tools if inspect.iscoroutinefunction(tool)}
    return {tool.__name__: tool for tool in tools if tool.__name__ not in awaited}, awaited
