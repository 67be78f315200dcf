"""`python -m benchmarks.agreement.sharing`: what several criteria in one call lose and save with a strong judge.

Two scripted judges behind a chat API answer the service's real prompts in text, as a hosted model without
log-probabilities does. They know which words a response contains, and err at a known rate:

- `steady` errs on 8% of the criteria, however many share a call;
- `crowding` errs on 4%, and on 4% more for each further criterion in the call.

Replies about several criteria are flawed at a known rate too: some are wrapped in prose, some in another order, some
without one verdict, and some are cut off. The table compares what the judge said with what the service read.
"""

import argparse
import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from tests.fixtures.served_app import served

from adjudge_services.cli.judges.evaluate import judge_contenders
from adjudge_services.cli.options import Asking
from benchmarks.report import publish
from judge_server.evaluation.bakeoff import BakeOff, Contender, bake_off
from judge_server.evaluation.judging import Judgement
from judge_server.evaluation.labelled import LabelledResponse
from trainer_client.wire import Criterion

WORDS = ("amber", "basalt", "cobalt", "dahlia", "ember", "fennel", "garnet", "hazel")
"""The words that criteria ask for: one criterion each."""

PER_CALL = (1, 2, 4, 8)
ERRORS = {"steady": (0.08, 0.0), "crowding": (0.04, 0.04)}
"""The error rate of each judge where a criterion is asked alone, and how much each further criterion adds."""

FLAWS = {"in prose": 0.06, "in another order": 0.06, "one verdict left out": 0.06, "cut off": 0.06}
"""The flaws of replies about several criteria, and the share of replies that has each."""

_RESPONSE = re.compile(r"Response:\n<material>\n(.*?)\n</material>", re.DOTALL)
_CRITERION = re.compile(r"(?:Criterion:|\d+\.) The response contains the word (\w+)\.")


def draw(*of: object) -> float:
    """Return a number in [0, 1) that is always the same for the same objects."""
    return int.from_bytes(hashlib.sha256(repr(of).encode()).digest()[:6], "big") / 2**48


@dataclass
class StrongJudge:
    """A judge that errs and writes flawed replies at known rates, and remembers what it said.

    Attributes:
        name: the model's name.
        alone, further: its error rate for a criterion alone, and what each further one in the call adds.
        said: what it said last of each (response, word); None if that was left out or cut off.
        flaws: how many replies had each flaw.
    """

    name: str
    alone: float
    further: float
    said: dict[tuple[str, str], bool | None] = field(default_factory=dict)
    flaws: Counter[str] = field(default_factory=Counter)

    def reply(self, text: str) -> str:
        """Answer a prompt of the service, about one criterion or several."""
        found = _RESPONSE.search(text)
        asked = _CRITERION.findall(text)
        if found is None or not asked:
            return "Red."  # the engine asks for a colour when it starts
        response = found[1]
        error = self.alone + self.further * (len(asked) - 1)
        met = [(word in response.split()) != (draw(self.name, response, word) < error) for word in asked]
        self.said |= {(response, word): one for word, one in zip(asked, met, strict=True)}
        return ("Yes" if met[0] else "No") if len(asked) == 1 else self._together(response, asked, met)

    def _together(self, response: str, asked: Sequence[str], met: Sequence[bool]) -> str:
        flaw, at = "", draw("flaw", self.name, response, asked)
        for name, share in FLAWS.items():
            flaw = name if 0 <= at < share else flaw
            at -= share
        self.flaws[flaw] += 1
        entries = [{"id": number, "satisfied": one} for number, one in enumerate(met, 1)]
        if flaw == "in another order":
            entries.reverse()
        if flaw == "one verdict left out":
            self.said[response, asked[entries.pop()["id"] - 1]] = None
        text = json.dumps({"verdicts": entries})
        if flaw == "cut off":
            text = text[: len(text) // 3]
            self.said |= dict.fromkeys([(response, word) for word in asked[text.count("}") :]])
            return text
        return f"Here is what I found:\n```json\n{text}\n```" if flaw == "in prose" else text


@contextmanager
def chat_api(judges: Sequence[StrongJudge]) -> Iterator[str]:
    """Serve the judges as the models of an OpenAI-compatible API; yield its base URL."""
    app = FastAPI()
    by_name = {judge.name: judge for judge in judges}

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"data": [{"id": name, "max_model_len": 16_384} for name in by_name]}

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> dict[str, Any]:
        body = await request.json()
        text = "\n".join([message["content"] for message in body["messages"]])
        said = by_name[body["model"]].reply(text)
        usage = {"prompt_tokens": len(text) // 4, "completion_tokens": max(1, len(said) // 4)}
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        return {"model": body["model"], "choices": [choice], "usage": usage}

    with served(app) as port:
        yield f"openai+http://127.0.0.1:{port}/v1"


def rows(number: int) -> list[LabelledResponse]:
    """Return labelled responses, each with about half of the words."""
    criteria = tuple([Criterion(id=word, description=f"The response contains the word {word}.") for word in WORDS])
    made = []
    for row in range(number):
        there = {word: draw("row", row, word) < 0.5 for word in WORDS}
        text = f"Sample {row}: " + " ".join(["stone", *[word for word in WORDS if there[word]], "moss"])
        made.append(
            LabelledResponse(str(row), "List what you found.", text, criteria, {w: float(there[w]) for w in WORDS})
        )
    return made


@dataclass(frozen=True, slots=True)
class Measured:
    """The bake-off of a judge, and for each contender what the service made of its replies."""

    found: BakeOff
    table: list[dict[str, Any]]


def measure(name: str, number: int, numbers: Sequence[int] = PER_CALL) -> Measured:
    """Judge `number` rows with a judge, with these numbers of criteria a call."""
    examples, answered, reading = rows(number), list[tuple[Contender, Sequence[Judgement] | str]](), []
    for per_call in numbers:
        judge = StrongJudge(name, *ERRORS[name])
        with chat_api([judge]) as url:
            contender = Contender(f"{name}, {per_call} a call", url, {"criteria_per_call": per_call})
            asked = asyncio.run(judge_contenders([contender], examples, Asking(fresh=True)))
        answered.append((contender, asked[0]))
        reading.append(read_against_said(judge, asked[0]))
    found = bake_off(answered, cost="tokens_computed")
    table = [_row(one, read) for one, read in zip(found.results, reading, strict=True)]
    return Measured(found, table)


def read_against_said(judge: StrongJudge, answered: Sequence[Judgement] | str) -> Counter[str]:
    """Count the verdicts that the service read as said, read otherwise, and could not read.

    Raises:
        RuntimeError: the judge could not be asked.
    """
    if isinstance(answered, str):
        raise RuntimeError(f"{judge.name} could not be asked: {answered}")
    counted: Counter[str] = Counter()
    for one in answered:
        assert isinstance(one.example, LabelledResponse)
        for word, verdict in one.verdicts.items():
            said = judge.said[one.example.response, word]
            as_said = said is not None and verdict.score == float(said)
            counted["failed" if verdict.score is None else "as said" if as_said else "misread"] += 1
    return counted


def _row(one: Any, read: Counter[str]) -> dict[str, Any]:
    balanced, cost = one.quality["balanced_accuracy"], one.cost
    return {
        "judge": one.contender.name,
        "balanced accuracy": f"{balanced.value:.2f} [{balanced.low:.2f}, {balanced.high:.2f}]",
        "verdicts": read.total(),
        "failed": read["failed"],
        "misread": read["misread"],
        "calls a verdict": f"{cost['calls'].value:.2f}",
        "tokens computed": f"{cost['tokens_computed'].value:.0f}",
        "written": f"{cost['tokens_written'].value:.1f}",
        "recommended": "yes" if one.recommended else "",
    }


def main() -> None:
    """Measure both judges and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=80, help="responses, with eight criteria each (default: 80)")
    number = parser.parse_args().rows
    table = [row for name in ERRORS for row in measure(name, number).table]
    flaws = ", ".join([f"{share:.0%} {name}" for name, share in FLAWS.items()])
    publish("sharing", "Criteria that share a call with a strong judge", table, [f"Flawed shared replies: {flaws}."])


if __name__ == "__main__":
    main()
