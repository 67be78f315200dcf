"""Adjudge: its client with a running `adjudge serve`, whose processor time counts as the contender's."""

from collections.abc import Sequence

from benchmarks.peers.driving import DriverConfig, Score, drive
from benchmarks.peers.worksheets import criteria, question, response
from trainer_client import AsyncClient
from trainer_client.wire import Group, RubricContent, Verdict


class AdjudgeDriver:
    """Judges all responses of a set in one request."""

    def __init__(self, setting: DriverConfig) -> None:
        self._client = AsyncClient(setting.options["service"], run="peers")
        self._deadline_s: float = setting.options["deadline_s"]
        texts = criteria(setting.criteria)
        rubric_criteria = [
            {"id": f"c{n}", "description": text, "verification": {"method": "judge"}} for n, text in enumerate(texts)
        ]
        self._rubric = RubricContent.model_validate({"criteria": rubric_criteria})

    async def judge(self, set_number: int, numbers: Sequence[int]) -> list[list[Score]]:
        """Return the verdicts of each response, with the kind of failure for a failed one."""
        group = Group(
            id=str(set_number),
            prompt=question(set_number),
            responses=tuple(response(set_number, number) for number in numbers),
        )
        answer = await self._client.rewards(groups=[group], rubric=self._rubric, deadline_s=self._deadline_s)
        return [[_score(verdict) for verdict in judged.verdicts] for judged in answer.groups[0].responses]


def _score(verdict: Verdict) -> Score:
    if verdict.score is None:
        return verdict.failure.kind if verdict.failure is not None else "failed"
    return verdict.score


if __name__ == "__main__":
    drive(AdjudgeDriver)
