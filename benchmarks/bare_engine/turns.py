"""What both sides are asked, turn by turn, and how turns become a row of figures. Knows no engine."""

import json
import secrets
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from judge_server.judging.plan import Context, GroupPlanner
from judge_server.judging.ways import JudgeSetup, Way
from judge_server.ports import Batch
from judge_server.prompts import Form, PromptTemplates
from judge_server.prompts.fencing import Fence
from trainer_client.thinking import judged
from trainer_client.wire import Criterion, Group, Protocol, RubricContent, as_response

SECRET = secrets.token_hex(16)
"""The fence's, so that the service makes the prompts that are made here."""

RUBRIC = RubricContent(
    criteria=(
        Criterion(id="answer", description="The final answer of the response equals the correct final answer."),
        Criterion(id="arithmetic", description="Every calculation in the response is carried out correctly."),
        Criterion(id="quantities", description="Every quantity given in the problem is used in the response."),
        Criterion(id="order", description="The calculations come in an order in which each uses only known values."),
        Criterion(id="units", description="The response says what the numbers it calculates stand for."),
        Criterion(id="concise", description="The response contains nothing that the problem does not ask for."),
    )
)


class Prompts(NamedTuple):
    """A response's calls as token ids: what they have in common, and what follows for each criterion."""

    prefix: list[int]
    questions: list[list[int]]

    @property
    def whole(self) -> list[list[int]]:
        """The prompt of each call."""
        return [self.prefix + question for question in self.questions]

    @property
    def ideal(self) -> int:
        """The fewest tokens to compute without anything from another response: the prefix once, each question once."""
        return len(self.prefix) + sum(map(len, self.questions))


@dataclass(frozen=True, slots=True)
class Pair:
    """A turn of each side on texts of about one length: seconds taken, and the ideal number of tokens of each."""

    through_s: float
    through_ideal: int
    through_computed: int
    straight_s: float
    straight_ideal: int

    @property
    def ratio(self) -> float:
        """Tokens a second through Adjudge over those of the bare engine."""
        return (self.through_ideal / self.through_s) / (self.straight_ideal / self.straight_s)


def groups(per_turn: int) -> Iterator[Group]:
    """Real problems with `per_turn` real rollouts each, in an endless round, marked so that no prompt recurs."""
    lines = Path("examples/gsm8k.jsonl").read_text(encoding="utf-8").splitlines()
    turn = 0
    while True:
        for line in lines:
            row = json.loads(line)
            turn += 1
            prompt = f"Problem {turn}. {row['prompt']}"
            yield Group.model_validate(row | {"prompt": prompt, "responses": row["responses"][:per_turn]})


def batches(group: Group, protocol: Protocol = "binary") -> list[Batch]:
    """The calls that Adjudge makes of a group, a batch for each response."""
    fence = Fence(SECRET.encode())
    alone, together = (PromptTemplates(Form(protocol, several=several), fence) for several in (False, True))
    setup = JudgeSetup(Way(protocol), alone, together, "benchmark")
    context = Context(group.prompt, group.grounding, group.reference_answer, group.ground_truth)
    responses = [judged(as_response(response), "strip") for response in group.responses]
    planner = GroupPlanner(setup, context, RUBRIC.criteria)
    return [planner.plan(response).batch for response in responses]


def figures(pairs: Sequence[Pair], judgements: int) -> dict[str, Any]:
    """The columns that turns make; `judgements` is how many one turn has.

    Turns differ in length, so rates are of tokens, turned into judgements by what the mean judgement takes.
    """
    ideal = sum(pair.through_ideal for pair in pairs)
    each = ideal / (len(pairs) * judgements)
    ratios = [pair.ratio for pair in pairs]
    return {
        "pairs": len(pairs),
        "judgements": len(pairs) * judgements,
        "Adjudge /s": statistics.median(pair.through_ideal / pair.through_s for pair in pairs) / each,
        "bare /s": statistics.median(pair.straight_ideal / pair.straight_s for pair in pairs) / each,
        "ratio": statistics.median(ratios),
        "ratio min": min(ratios),
        "ratio max": max(ratios),
        "tokens computed": sum(pair.through_computed for pair in pairs),
        "over ideal": sum(pair.through_computed for pair in pairs) / ideal,
    }
