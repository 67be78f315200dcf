"""A group's last response written anew from its best one, for methods that refine.

All ranks assess all groups alike, from what each had judged; the rank that holds a group's last response refines it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, get_args

from accelerate.utils import gather_object

from trainer_client.refine import RefinementDecision, RefinementOutcome, assess_group, refinement_prompt
from trainer_client.trl._scored import ScoredRow
from trainer_client.trl.methods.rgr import Rgr
from trainer_client.wire import Criterion

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
    for field in (_COMPLETION_IDS, _TOOL_MASK, COMPLETIONS, _LOGPS):
        if result[field] is not None:
            result[field] = list(result[field])
            for place, row in enumerate(fitting_prompts):
                result[field][row] = regenerated[field][place]
    return tuple(result)
