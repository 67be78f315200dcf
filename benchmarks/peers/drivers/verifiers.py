"""verifiers: its unmodified `RubricJudge` with one criterion per call, on the last reply of a trace.

It opens a client for each call, does not retry, and raises for the whole response if one of its calls fails.
"""

import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from verifiers.v1.configs.client import ClientTimeoutConfig
from verifiers.v1.judges.rubric import RubricJudge, RubricJudgeConfig
from verifiers.v1.task import TaskData
from verifiers.v1.trace import AgentInfo, Trace, TraceTask
from verifiers.v1.types import SamplingConfig

from benchmarks.peers.driving import LONGEST_REPLY, DriverConfig, Score, drive, failed
from benchmarks.peers.worksheets import criteria, question, response


class VerifiersDriver:
    """Judges as many responses at a time as the allowed number of calls permits."""

    def __init__(self, setting: DriverConfig) -> None:
        self._names = [f"c{n}" for n in range(setting.criteria)]
        texts = zip(self._names, criteria(setting.criteria), strict=True)
        file = Path(tempfile.mkdtemp(), "rubric.json")
        file.write_text(json.dumps([{"name": name, "text": text} for name, text in texts]), encoding="utf-8")
        self._judge = RubricJudge(
            RubricJudgeConfig(
                path=file,
                model=setting.model,
                base_url=setting.url,
                api_key_var="PEERS_API_KEY",
                timeout=ClientTimeoutConfig(connect=setting.timeout_s, read=setting.timeout_s),
                sampling=SamplingConfig(temperature=0.0, max_tokens=LONGEST_REPLY),
                view="last_reply",
                max_criteria=1,
            )
        )
        self._slots = asyncio.Semaphore(max(1, setting.in_flight // setting.criteria))

    async def judge(self, set_number: int, numbers: Sequence[int]) -> list[list[Score]]:
        """Score each response; one that raises has no scores."""
        return list(await asyncio.gather(*(self._one(set_number, number) for number in numbers)))

    async def _one(self, set_number: int, number: int) -> list[Score]:
        task = TaskData(prompt=question(set_number))
        trace: Trace = Trace(
            task=TraceTask(type="Worksheet", data=task),
            agent=AgentInfo(config={}),
            root_reply=response(set_number, number),
        )
        async with self._slots:
            try:
                await self._judge.score(task, trace)
            except Exception as error:  # noqa: BLE001 - any error means that there is no score
                return [failed(error)] * len(self._names)
        return [trace.metrics[f"{self._judge.reward_name}/{name}"] for name in self._names]


if __name__ == "__main__":
    drive(VerifiersDriver)
