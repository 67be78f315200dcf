"""The right answers, from a service that nobody disturbs, and how answers of a cluster compare with them."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.server import running_service
from benchmarks.soak.cluster import FENCES
from benchmarks.soak.trainer import sign
from benchmarks.soak.workload import CRITERIA, RULES, group_of
from trainer_client import AsyncClient
from trainer_client.wire import GroupRewards

_GROUPS_A_REQUEST, _IN_FLIGHT = 16, 4


class ExpectedAnswer(NamedTuple):
    """What is right of a group: a reward and a text of verdicts for each response."""

    rewards: list[float | None]
    verdicts: list[str]


class AnswerComparison(NamedTuple):
    """What came of comparing: what is wrong, in words, and the named failures by kind."""

    violations: list[str]
    failures: Counter[str]


def compute_expected(subjects: Iterable[int]) -> dict[int, ExpectedAnswer]:
    """The right answers about these groups, of a service of its own, whose engine and fences are the cluster's."""
    with running_service("scripted://hash", ADJUDGE_FENCE_SECRET=FENCES, ADJUDGE_LEDGER="off") as (url, _):
        return ask_for_answers(url, subjects)


def ask_for_answers(url: str, subjects: Iterable[int], api_key: str | None = None) -> dict[int, ExpectedAnswer]:
    """Ask a service about these groups, and return its answers."""
    return asyncio.run(_asked(url, sorted(set(subjects)), api_key))


def right(group: GroupRewards) -> ExpectedAnswer:
    """A group's answer as what is right."""
    return ExpectedAnswer(
        [response.reward for response in group.responses],
        ["".join(sign(verdict.score) for verdict in response.verdicts) for response in group.responses],
    )


def compare_answers(lines: Sequence[Mapping[str, Any]], known: Mapping[int, ExpectedAnswer]) -> AnswerComparison:
    """Compare what trainers or operations were told, a line a group, with what is right.

    A verdict is the right one, or has failed and says how. A reward is the right one, or null where a verdict failed.
    """
    violations, failures = [], Counter[str]()
    for line in lines:
        of = known[line["subject"]]
        failures.update(line["failures"])
        missing = sum(verdicts.count("-") for verdicts in line["verdicts"])
        if missing != sum(line["failures"].values()):
            violations.append(
                f"group {line['subject']}: {missing} verdicts are missing, and {line['failures']} are named"
            )
        if len(line["verdicts"]) != len(of.verdicts):
            violations.append(f"group {line['subject']}: {len(line['verdicts'])} responses")
        for n, (reward, verdicts) in enumerate(zip(line["rewards"], line["verdicts"], strict=True)):
            honest = len(verdicts) == CRITERIA and all(
                a in (b, "-") for a, b in zip(verdicts, of.verdicts[n], strict=True)
            )
            if not honest or reward != (None if "-" in verdicts else of.rewards[n]):
                said = f"{reward} of {verdicts}, which is {of.rewards[n]} of {of.verdicts[n]}"
                violations.append(f"group {line['subject']}, response {n}: {said}")
    return AnswerComparison(violations, failures)


async def _asked(url: str, subjects: Sequence[int], api_key: str | None) -> dict[int, ExpectedAnswer]:
    known: dict[int, ExpectedAnswer] = {}
    todo = iter([subjects[i : i + _GROUPS_A_REQUEST] for i in range(0, len(subjects), _GROUPS_A_REQUEST)])
    async with AsyncClient(url, api_key=api_key) as client:

        async def sender() -> None:
            for some in todo:
                answer = await client.rewards([group_of(subject) for subject in some], {"criteria": RULES})
                known.update({subject: right(group) for subject, group in zip(some, answer.groups, strict=True)})

        await asyncio.gather(*(sender() for _ in range(_IN_FLIGHT)))
    return known
