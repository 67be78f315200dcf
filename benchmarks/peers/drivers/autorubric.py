"""autorubric: its `CriterionGrader` with one judge, which asks for a status and an explanation, one call a criterion.

Calls go through LiteLLM, at most three times with pauses between them. A call that fails leaves the criterion
`CANNOT_ASSESS`, with the error beside it.
"""

import asyncio
from collections.abc import Sequence

from autorubric import CriterionVerdict, LLMConfig, Rubric
from autorubric.graders import CriterionGrader

from benchmarks.peers.driving import LONGEST_REPLY, DriverConfig, Score, drive, failed
from benchmarks.peers.worksheets import criteria, question, response


class AutorubricDriver:
    """Grades all responses at once; the library bounds the number of calls."""

    def __init__(self, setting: DriverConfig) -> None:
        self._rubric = Rubric.from_dict([{"weight": 1.0, "requirement": text} for text in criteria(setting.criteria)])
        self._grader = CriterionGrader(
            judge_model_config=LLMConfig(
                model=f"openai/{setting.model}",
                api_base=setting.url,
                api_key="none",
                temperature=0.0,
                max_tokens=LONGEST_REPLY,
                timeout=setting.timeout_s,
                max_parallel_requests=setting.in_flight,
            )
        )

    async def judge(self, set_number: int, numbers: Sequence[int]) -> list[list[Score]]:
        """Grade each response by the whole rubric."""
        return list(await asyncio.gather(*(self._one(set_number, number) for number in numbers)))

    async def _one(self, set_number: int, number: int) -> list[Score]:
        try:
            graded = await self._rubric.grade(
                to_grade=response(set_number, number), grader=self._grader, query=question(set_number)
            )
        except Exception as error:  # noqa: BLE001 - any error means that there is no score
            return [failed(error)] * len(self._rubric.rubric)
        scores: list[Score] = []
        for one in graded.report:
            if one.final_verdict in (CriterionVerdict.MET, CriterionVerdict.UNMET):
                scores.append(float(one.final_verdict is CriterionVerdict.MET))
            else:
                scores.append(one.error or "CANNOT_ASSESS")
        return scores


if __name__ == "__main__":
    drive(AutorubricDriver)
