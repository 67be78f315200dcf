"""From a run's verdicts in the ledger to judged trajectories: no judge is asked, and no text is needed but for looping.

What a response was worth, and whether its answer is right, is what was recorded when it was judged.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from adjudge_services.settings import Settings
from adjudge_services.wiring import prepare_store
from judge_server.evaluation.trajectories import LoopLimits, ProblemResponses, Trajectory, by_kind, satisfied
from judge_server.judging.plan import OUTCOME
from judge_server.ledger.reading import decode_cursor, recorded_page
from judge_server.ledger.rows import storable_text
from rubric_store import SQLLedger
from trainer_client import AsyncClient
from trainer_client._loops import loops
from trainer_client.measures import self_bleu
from trainer_client.thinking import judged_content
from trainer_client.wire import Prompt
from trainer_client.wire.groups import Response
from trainer_client.wire.ledger import RecordedVerdict
from trainer_client.wire.ledger_rows import UseFilter

_PAGE = 500


class RunFilter(NamedTuple):
    """Which verdicts are read: of a run, of a step where one is given; with texts, where they are kept."""

    run: str
    project: str
    step: int | None = None
    texts: bool = False


class RunProblems(NamedTuple):
    """A run's problems by training step (None where none was named), its responses, and how many of them lack what.

    `texts` has the known texts of each problem, in the order of `by_step`.
    """

    by_step: dict[int | None, list[ProblemResponses]]
    texts: list[list[str]]
    responses: int
    without_reward: int
    without_text: int


async def read_recorded(wanted: RunFilter, url: str | None) -> AsyncIterator[RecordedVerdict]:
    """Go through a run's verdicts in the order they were judged, from a service, or from the database without one.

    Raises:
        AdjudgeError: the service cannot be asked.
        StartError, ConnectionError: the database cannot be read.
    """
    if url is not None:
        async with AsyncClient(url) as client:
            async for verdict in client.recorded_verdicts(wanted.run, step=wanted.step, texts=wanted.texts):
                yield verdict
        return
    settings = Settings()
    await prepare_store(settings)
    ledger = SQLLedger(settings.store_url)
    uses = UseFilter(wanted.project, storable_text(wanted.run), wanted.step, limit=_PAGE)
    try:
        while True:
            page = await recorded_page(ledger, uses, texts=wanted.texts)
            for verdict in page.verdicts:
                yield verdict
            if page.next_cursor is None:
                return
            uses = uses._replace(after=decode_cursor(page.next_cursor))
    finally:
        await ledger.close()


async def read_responses(wanted: RunFilter, url: str | None) -> list["RecordedResponse"]:
    """Read a run's responses, each with its verdicts.

    Raises:
        ValueError: the ledger has nothing of the run; and as `read_recorded`.
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
            f"the ledger has nothing of run {wanted.run!r}{part}; `adjudge runs` lists the runs there are, and what "
            "was judged a moment ago may still be on its way"
        )
    return responses


@dataclass(slots=True, init=False)
class RecordedResponse:
    """A response as it was judged.

    Attributes:
        step: the training step.
        problem: what responses to the same prompt share: the digest of the prompt, or the request and group where a
            service does not tell it.
        prompt: None where texts were not asked for or are not kept.
        text: of the response, its reasoning included; None likewise.
        reward: as answered; None where it got none.
        answers: scores of the verdicts that say whether the final answer is right; None for one that failed.
        scores: of all other criteria: kind, weight, score.
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

    def add(self, recorded_verdicts: RecordedVerdict) -> None:
        """Take a criterion's verdict."""
        verdict = recorded_verdicts.verdict
        if recorded_verdicts.kind == "answer" or (recorded_verdicts.rubric is None and verdict.criterion == OUTCOME):
            self.answers.append(verdict.score)
        else:
            weight = 1.0 if recorded_verdicts.weight is None else recorded_verdicts.weight
            self.scores.append((recorded_verdicts.kind or "point", weight, verdict.score))

    @property
    def correct(self) -> float | None:
        """1 if every verdict on the answer says so, 0 if one says no; None where that is not known."""
        if not self.answers or (None in self.answers and 0.0 not in self.answers):
            return None
        return float(all(score == 1.0 for score in self.answers))

    def trajectory(self, limits: LoopLimits) -> Trajectory:
        """Give it as measures take it."""
        return Trajectory(
            None if self.text is None else loops(self.text, **limits._asdict()),
            correct=self.correct,
            reward=self.reward,
            satisfied=satisfied(self.scores),
            by_kind=by_kind(self.scores),
        )


def problems_of(responses: Iterable[RecordedResponse], limits: LoopLimits) -> RunProblems:
    """Put responses to the same prompt at the same step together, in the order of the steps, those of none last."""
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
    texts = _texts(members)
    alike = self_bleu(texts) if len(texts) > 1 else None
    return ProblemResponses(tuple([one.trajectory(limits) for one in members]), alike)


def _texts(members: Sequence[RecordedResponse]) -> list[str]:
    return [one.text for one in members if one.text is not None]
