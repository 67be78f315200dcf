"""Expected answers from an undisturbed service, and the comparison of a cluster's answers with them."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.server import running_service
from benchmarks.soak.trainer import sign
from benchmarks.soak.workload import CRITERIA, RULES, group_of
from trainer_client import AsyncClient
from trainer_client.wire import GroupRewards

_GROUPS_A_REQUEST, _IN_FLIGHT = 16, 4


class ExpectedAnswer(NamedTuple):
    """The expected answer about a group: for each response, its reward and its verdicts as text (see `sign`)."""

    rewards: list[float | None]
    verdicts: list[str]


class AnswerComparison(NamedTuple):
    """The violations as text, and the reported failures by kind."""

    violations: list[str]
    failures: Counter[str]


def compute_expected(subjects: Iterable[int]) -> dict[int, ExpectedAnswer]:
    """Compute the expected answers about these groups with a new service that has the cluster's engine."""
    with running_service("scripted://hash", ADJUDGE_LEDGER="off") as (url, _):
        return ask_for_answers(url, subjects)


def ask_for_answers(url: str, subjects: Iterable[int], api_key: str | None = None) -> dict[int, ExpectedAnswer]:
    """Ask a service about these groups and return its answers."""
    return asyncio.run(_ask(url, sorted(set(subjects)), api_key))


def right(group: GroupRewards) -> ExpectedAnswer:
    """Convert a group's rewards to an expected answer."""
    return ExpectedAnswer(
        [response.reward for response in group.responses],
        ["".join(sign(verdict.score) for verdict in response.verdicts) for response in group.responses],
    )


def compare_answers(lines: Sequence[Mapping[str, Any]], known: Mapping[int, ExpectedAnswer]) -> AnswerComparison:
    """Compare the answers that trainers or operations got, one line per group, with the expected ones.

    A verdict must be as expected or failed with a kind. A reward must be as expected, or null if a verdict failed.
    """
    violations, failures = [], Counter[str]()
    for line in lines:
        expected = known[line["subject"]]
        failures.update(line["failures"])
        missing = sum(verdicts.count("-") for verdicts in line["verdicts"])
        if missing != sum(line["failures"].values()):
            violations.append(
                f"group {line['subject']}: {missing} verdicts are missing, but {line['failures']} are reported"
            )
        if len(line["verdicts"]) != len(expected.verdicts):
            violations.append(
                f"group {line['subject']}: {len(line['verdicts'])} responses, expected {len(expected.verdicts)}"
            )
        for n, (reward, verdicts) in enumerate(zip(line["rewards"], line["verdicts"], strict=True)):
            verdicts_match = len(verdicts) == CRITERIA and all(
                a in (b, "-") for a, b in zip(verdicts, expected.verdicts[n], strict=True)
            )
            if not verdicts_match or reward != (None if "-" in verdicts else expected.rewards[n]):
                violations.append(
                    f"group {line['subject']}, response {n}: reward {reward} from verdicts {verdicts}, "
                    f"expected {expected.rewards[n]} from {expected.verdicts[n]}"
                )
    return AnswerComparison(violations, failures)


async def _ask(url: str, subjects: Sequence[int], api_key: str | None) -> dict[int, ExpectedAnswer]:
    known: dict[int, ExpectedAnswer] = {}
    todo = iter([subjects[i : i + _GROUPS_A_REQUEST] for i in range(0, len(subjects), _GROUPS_A_REQUEST)])
    async with AsyncClient(url, api_key=api_key) as client:

        async def sender() -> None:
            for some in todo:
                answer = await client.rewards([group_of(subject) for subject in some], {"criteria": RULES})
                known.update({subject: right(group) for subject, group in zip(some, answer.groups, strict=True)})

        await asyncio.gather(*(sender() for _ in range(_IN_FLIGHT)))
    return known
