"""Measure a run from its verdicts in the ledger, without asking a judge.

Texts are needed for looping and diversity only. Rewards and correctness are those recorded when the responses were
judged.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from adjudge_services.store import open_store
from judge_server.evaluation.measuring.trajectories import LoopLimits, ProblemResponses, Trajectory, by_kind, satisfied
from judge_server.judging.plan import OUTCOME
from judge_server.scoring.recorded import decode_cursor, recorded_page, storable_text
from rubric_store import SQLLedger
from rubric_store.ledger.rows import UseFilter
from trainer_client import AsyncClient
from trainer_client.measures import loops, self_bleu
from trainer_client.text.thinking import judged_content
from trainer_client.wire import Prompt
from trainer_client.wire.groups import Response
from trainer_client.wire.ledger import RecordedVerdict

_PAGE = 500


class RunFilter(NamedTuple):
    """Which verdicts to read: of a run, of one step if given; with texts if wanted and kept."""

    run: str
    project: str
    step: int | None = None
    texts: bool = False


class RunProblems(NamedTuple):
    """A run's problems by training step (None for requests without a step), and counts of its responses.

    `texts` has the known texts of each problem, in the order of `by_step`.
    """

    by_step: dict[int | None, list[ProblemResponses]]
    texts: list[list[str]]
    responses: int
    without_reward: int
    without_text: int


async def read_recorded(wanted: RunFilter, url: str | None) -> AsyncIterator[RecordedVerdict]:
    """Iterate over a run's verdicts in the order they were judged, from a service, or from the database without `url`.

    Raises:
        AdjudgeError: the service cannot be read.
        StartError, ConnectionError: the database cannot be read.
    """
    if url is not None:
        async with AsyncClient(url) as client:
            async for verdict in client.recorded_verdicts(wanted.run, step=wanted.step, texts=wanted.texts):
                yield verdict
        return
    uses = UseFilter(wanted.project, storable_text(wanted.run), wanted.step, limit=_PAGE)
    async with open_store(SQLLedger) as ledger:
        while True:
            page = await recorded_page(ledger, uses, texts=wanted.texts)
            for verdict in page.verdicts:
                yield verdict
            if page.next_cursor is None:
                return
            uses = uses._replace(after=decode_cursor(page.next_cursor))


async def read_responses(wanted: RunFilter, url: str | None) -> list["RecordedResponse"]:
    """Read a run's responses, each with its verdicts.

    Raises:
        ValueError: the ledger has no requests of the run. Also raises what `read_recorded` raises.
    """
    responses: list[RecordedResponse] = []
    key: tuple[str, str, int] | None = None
    async for verdict in read_recorded(wanted, url):
        own = verdict.request_id, verdict.group, verdict.response
        if own != key:
            responses.append(RecordedResponse(verdict))
            key = own
        responses[-1].add(verdict)
    if not responses:
        part = "" if wanted.step is None else f" at step {wanted.step}"
        raise ValueError(
            f"the ledger has no requests of run {wanted.run!r}{part}; `adjudge runs` lists the runs, and very recent "
            "requests may not be recorded yet"
        )
    return responses


@dataclass(slots=True, init=False)
class RecordedResponse:
    """A response as it was judged.

    Attributes:
        step: the training step.
        problem: the key of the prompt: its digest, or the request and group if the service does not return it.
        prompt: None if texts were not asked for or are not kept.
        text: the response's text with its reasoning; None likewise.
        reward: the recorded reward; None if there was none.
        answers: scores of the verdicts on the final answer; None for a failed one.
        scores: kind, weight and score of all other criteria.
    """

    step: int | None
    problem: str
    prompt: Prompt | None
    text: str | None
    reward: float | None
    answers: list[float | None] = field(default_factory=list)
    scores: list[tuple[str, float, float | None]] = field(default_factory=list)

    def __init__(self, first: RecordedVerdict) -> None:
        self.step, self.reward, self.prompt = first.step, first.reward, first.prompt
        self.problem = first.prompt_digest or f"{first.request_id} {first.group}"
        self.text = None if first.text is None else judged_content(Response(text=first.text), "keep").text
        self.answers, self.scores = [], []

    def add(self, recorded: RecordedVerdict) -> None:
        """Add the verdict on a criterion."""
        verdict = recorded.verdict
        if recorded.kind == "answer" or (recorded.rubric is None and verdict.criterion == OUTCOME):
            self.answers.append(verdict.score)
        else:
            weight = 1.0 if recorded.weight is None else recorded.weight
            self.scores.append((recorded.kind or "point", weight, verdict.score))

    @property
    def correct(self) -> float | None:
        """1 if every verdict on the final answer is yes, 0 if any is no; None if unknown."""
        if not self.answers or (None in self.answers and 0.0 not in self.answers):
            return None
        return float(all(score == 1.0 for score in self.answers))

    def trajectory(self, limits: LoopLimits) -> Trajectory:
        """Convert it to a trajectory, as the measures expect."""
        return Trajectory(
            None if self.text is None else loops(self.text, **limits._asdict()),
            correct=self.correct,
            reward=self.reward,
            satisfied=satisfied(self.scores),
            by_kind=by_kind(self.scores),
        )


def problems_of(responses: Iterable[RecordedResponse], limits: LoopLimits) -> RunProblems:
    """Group responses by step and prompt, in the order of the steps; those without a step come last."""
    grouped: dict[int | None, dict[str, list[RecordedResponse]]] = {}
    for one in responses:
        grouped.setdefault(one.step, {}).setdefault(one.problem, []).append(one)
    steps = sorted(grouped, key=lambda step: (step is None, step or 0))
    problems = [members for step in steps for members in grouped[step].values()]
    all_responses = [one for members in problems for one in members]
    return RunProblems(
        {step: [_problem(members, limits) for members in grouped[step].values()] for step in steps},
        [_texts(members) for members in problems],
        len(all_responses),
        sum(one.reward is None for one in all_responses),
        sum(one.text is None for one in all_responses),
    )


def _problem(members: Sequence[RecordedResponse], limits: LoopLimits) -> ProblemResponses:
    alike = self_bleu(texts) if len(texts := _texts(members)) > 1 else None
    return ProblemResponses(tuple([one.trajectory(limits) for one in members]), alike)


def _texts(members: Sequence[RecordedResponse]) -> list[str]:
    return [one.text for one in members if one.text is not None]
