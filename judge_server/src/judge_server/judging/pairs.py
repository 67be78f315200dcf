"""Comparisons of two responses to a prompt: how one is asked, and which pairs of a group meet. Pure: no calls are made.

A judge may prefer whichever response comes first, so callers plan both orders of a pair.

The schedules of the mode `ranking` say, round by round, which pairs of a group's responses are compared:

- `all_pairs`: one round with every pair, n (n - 1) / 2 of n responses.
- `pivot`: one round of every response against the same one of the group, n - 1 pairs. Writing-Zero (arXiv 2506.00103)
  picks its reference in a group at random; here a hash of the texts picks it.
- `swiss`: rounds of n / 2 pairs. In each, responses that have won about as much meet, and no pair meets twice. With an
  odd number one response pauses, and goes first in the next round.

What is left to chance is decided by a hash of the texts: the same responses in another order meet in the same pairs.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

from judge_server.judging.combining import combine_plans
from judge_server.judging.plan import PendingVerdict, PlannedCall, ResponsePlan
from judge_server.judging.presentation import has_content, images_of, show_hidden, show_response
from judge_server.judging.questions import CallDigests, PreparedConfig, ask, option
from judge_server.judging.shown import GroupContext
from judge_server.ports import Batch, JudgeResult, TokenChoice
from trainer_client.text.thinking import JudgedContent
from trainer_client.wire import Criterion
from trainer_client.wire.judging import Defence
from trainer_client.wire.rewards import RankingSchedule

DEFAULT_QUESTION = "Which response is better?"
A_OR_B = TokenChoice((option("A"), option("B")))

_NO_CONTENT = {
    score: (hashlib.sha256(f"no content, compared: {score}".encode()).digest(), JudgeResult(score=score))
    for score in (0.0, 0.5, 1.0)
}
"""The outcomes of comparisons with a response that says nothing, by what the first response wins."""


class ShownResponse(NamedTuple):
    """A response as the judge is shown it, whether it says nothing, and its images."""

    text: str
    empty: bool
    images: tuple[str, ...] = ()


class PairPlanner:
    """Plans comparisons of responses to one prompt. What they share is built once.

    Args:
        prepared: the judging configuration of the protocol `comparison`, made ready.
        context: the prompt and the material of the group. The judge sees what its templates do not withhold.
        criteria: what counts; may be empty.
        question: what the judge is asked.
        defences: the defences in force. With `no_content`, a response that says nothing loses to one that says
            something, and ties with another that says nothing, without a call.
        group: the index of the group in its request.
    """

    def __init__(
        self,
        prepared: PreparedConfig,
        context: GroupContext,
        criteria: Sequence[Criterion],
        question: str = DEFAULT_QUESTION,
        *,
        defences: Sequence[Defence] = (),
        group: int = 0,
    ) -> None:
        self._members = [
            PairPlanner(own, context, criteria, question, defences=defences, group=group) for own in prepared.members
        ]
        self._prepared, self._defences, self._group = prepared, defences, group
        self._templates, withheld = prepared.single_templates, prepared.declaration.withholds
        self._right = context.right_answers()
        self._material = context.shown(withheld)
        self._penalises = any(criterion.avoided for criterion in criteria)
        self._images = images_of(context.prompt)
        self._question = self._templates.comparison(() if "criteria" in withheld else criteria, question)

    def shown(self, judged: JudgedContent) -> ShownResponse:
        """Return a response in the form in which `plan` takes it."""
        says_nothing = judged.messages is None and not has_content(judged.text)
        empty = "no_content" in self._defences and says_nothing and judged.text.strip() not in self._right
        normalised = "normalise" in self._defences
        text, _ = show_response(judged, (), "headings", normalised=normalised, keep=None)
        if judged.hidden and self._penalises:
            text += f"\n\n{show_hidden(judged.hidden, normalised=normalised, keep=None)[0]}"
        return ShownResponse(text, empty, images_of(judged.messages or ()))

    def plan(self, about: str, first: ShownResponse, second: ShownResponse) -> ResponsePlan:
        """Plan whether the first response is better; `about` is the id of the verdict, 1 meaning that it is."""
        if self._members:
            return combine_plans(self._prepared, [member.plan(about, first, second) for member in self._members])
        templates = self._templates
        if first.empty or second.empty:
            digest, result = _NO_CONTENT[(1.0 + second.empty - first.empty) / 2]
            pending = PendingVerdict(about, "no_content", (digest,))
            return ResponsePlan((pending,), Batch("", "", ()), (), group=self._group, decided=((digest, result),))
        shared = templates.pair(self._material, first.text, second.text)
        question = ask(self._prepared, about, self._question, A_OR_B, None, "yes_no")
        images = (*self._images, *first.images, *second.images)
        batch = Batch(templates.system, shared, (question.call,), images, self._prepared.cache_salt)
        digests = CallDigests(self._prepared.fingerprint, batch).of(question.call)
        return ResponsePlan(
            (PendingVerdict(about, "judge", digests),),
            batch,
            (PlannedCall(question, digests),),
            system_alone=templates.system,
            group=self._group,
        )


Pair = tuple[int, int]


def swiss_rounds(count: int, rounds: int | None) -> int:
    """Return the rounds of a Swiss schedule of `count` responses: as asked, but no more than there are opponents."""
    return min(count - 1, math.ceil(math.log2(count)) if rounds is None else rounds)


def most_pairs(count: int, schedule: RankingSchedule, rounds: int | None) -> int:
    """Return the most pairs that a schedule of `count` responses has over all rounds."""
    if schedule == "all_pairs":
        return count * (count - 1) // 2
    return count - 1 if schedule == "pivot" else swiss_rounds(count, rounds) * (count // 2)


class Tournament:
    """The pairs of a group, round by round.

    Args:
        texts: the text of each response.
        schedule: how pairs are chosen.
        rounds: the rounds of a Swiss schedule; None for the default.
    """

    def __init__(self, texts: Sequence[str], schedule: RankingSchedule, rounds: int | None = None) -> None:
        keys = [hashlib.sha256(text.encode(errors="surrogatepass")).digest() for text in texts]
        self._order = sorted(range(len(texts)), key=lambda place: (keys[place], place))
        self._schedule = schedule
        self._rounds_left = swiss_rounds(len(texts), rounds) if schedule == "swiss" else 1
        self._met: set[Pair] = set()
        self._games = [0] * len(texts)

    @property
    def finished(self) -> bool:
        """Whether there is no further round."""
        return not self._rounds_left

    def next_round(self, standings: Sequence[float]) -> list[Pair]:
        """Return the pairs of the next round, the lower place of each first; in order.

        `standings` holds what each response has won of its comparisons, from 0 to 1; 0.5 if it has none.
        """
        self._rounds_left -= 1
        if self._schedule == "all_pairs":
            places = range(len(self._order))
            return [(i, j) for i in places for j in places if i < j]
        if self._schedule == "pivot":
            pivot = self._order[0]
            return sorted([(min(pivot, place), max(pivot, place)) for place in self._order[1:]])
        return self._swiss(standings)

    def _swiss(self, standings: Sequence[float]) -> list[Pair]:
        waiting = sorted(self._order, key=lambda place: (self._games[place], -standings[place]))
        pairs: list[Pair] = []
        while waiting:
            place = waiting.pop(0)
            for index, other in enumerate(waiting):
                pair = (min(place, other), max(place, other))
                if pair not in self._met:
                    del waiting[index]
                    pairs.append(pair)
                    break
        self._met.update(pairs)
        for place in [place for pair in pairs for place in pair]:
            self._games[place] += 1
        return sorted(pairs)
