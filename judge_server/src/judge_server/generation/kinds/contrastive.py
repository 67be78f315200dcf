"""`contrastive` (SRaR): tagged items distilled from what separates right solutions of a problem from wrong ones."""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field, JsonValue, create_model

from judge_server.generation.discards import Discarded
from judge_server.generation.generator import Find, Made
from judge_server.generation.kinds.answers import AGREEMENT_WORDING, Agreement, Agreements
from judge_server.generation.kinds.base import GroundTruth, QuestionRow, Responses, WordedGenerator, WritingParameters
from judge_server.generation.kinds.shapes import Line, several
from judge_server.generation.structure import Draft, Rules, check_drafts, named_by_kind, names
from judge_server.generation.wording import Wording
from judge_server.generation.writer import Writer
from trainer_client.wire import Criterion, RubricContent
from trainer_client.wire.verification import ByMath

KINDS = ("suggest", "pitfall", "bonus", "answer")


class ContrastiveRow(QuestionRow):
    """A problem, its known answer, and solutions, if some are there already."""

    ground_truth: GroundTruth
    solutions: Responses = ()


class ContrastiveParameters(WritingParameters):
    """How solutions are sampled where none are given, and how many of them the distillation reads.

    Attributes:
        samples: how many solutions are sampled.
        sample_temperature: at which temperature.
        shown: the most solutions of either half that are shown.
        solution_characters: what of each is shown: its beginning.
        asked: the most items that are asked for (the paper's prompt: 8).
        most, most_suggest, most_pitfall, most_bonus: the most items that are taken, in all and of a kind; the defaults
            are the largest counts of the paper's corpus (Table 12), whose rubrics do not all keep to the prompt's 8.
    """

    samples: int = Field(default=4, ge=1, le=64)
    sample_temperature: float = Field(default=0.8, gt=0, le=2)
    shown: int = Field(default=4, ge=1, le=32)
    solution_characters: int = Field(default=4_000, ge=100)
    asked: int = Field(default=8, ge=2, le=64)
    most: int = Field(default=12, ge=2, le=64)
    most_suggest: int = Field(default=8, ge=1, le=32)
    most_pitfall: int = Field(default=3, ge=0, le=32)
    most_bonus: int = Field(default=2, ge=0, le=32)


class ContrastiveRubric(BaseModel):
    """What the model writes: the items by their tags."""

    suggest: list[Line]
    pitfall: list[Line]
    bonus: list[Line]
    answer: Line


@cache
def _bounded(suggest: int, pitfall: int, bonus: int) -> type[ContrastiveRubric]:
    """The shape with at most so many items of each kind."""
    fields: dict[str, Any] = {
        "suggest": (Annotated[list[Line], several(Line, 1, suggest)], ...),
        "pitfall": (Annotated[list[Line], several(Line, 0, pitfall)], ...),
        "bonus": (Annotated[list[Line], several(Line, 0, bonus)], ...),
    }
    made: type[ContrastiveRubric] = create_model(
        f"ContrastiveRubricOf{suggest}And{pitfall}And{bonus}", __base__=ContrastiveRubric, **fields
    )
    return made


class ContrastiveGenerator(WordedGenerator[ContrastiveRow, ContrastiveParameters]):
    """Solutions, split by math-verify; then some suggest items, one answer, perhaps pitfalls and a bonus."""

    kind = "contrastive"
    summary = "suggest, pitfall, bonus and answer items from right and wrong solutions (SRaR)"
    Input = ContrastiveRow
    Parameters = ContrastiveParameters
    steps: ClassVar[tuple[str, ...]] = ("solutions", "split", "distil", "check", "validity")
    wording = Wording(
        "author.system", "solver.system", "contrastive.solution", "contrastive.rubric", *AGREEMENT_WORDING.names
    )

    def __init__(
        self, parameters: ContrastiveParameters, *, find: Find | None = None, templates: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(parameters, find=find, templates=templates)
        self._agreements = Agreements(self.wording)

    def source_of(self, row: ContrastiveRow) -> str:
        """The problem."""
        return row.question

    async def close(self) -> None:
        """End the processes that compare answers."""
        await self._agreements.close()

    async def make(self, row: ContrastiveRow, writer: Writer) -> Made:
        """Make one rubric; see `Generator.make`. Flags: `all_right`, `all_wrong`."""
        solutions = list(row.solutions) or await self._sampled(row, writer)
        halves = await self._split(row, solutions, writer)
        if not halves["right"] and not halves["wrong"]:
            raise Discarded("no_contrast", f"none of {len(solutions)} solutions states an answer that can be compared")
        criteria = await self._distilled(row, halves, writer)
        kept, flags = await self.validity(writer, criteria, question=row.question, correct=row.ground_truth)
        one_sided = {"all_right": not halves["wrong"], "all_wrong": not halves["right"]}
        counts: dict[str, JsonValue] = {half: len(found) for half, found in halves.items()}
        return Made(
            content=RubricContent(criteria=criteria),
            metadata={"question": row.question, "ground_truth": row.ground_truth, **kept},
            record={"solutions_given": bool(row.solutions), **counts, "right_solutions": list(halves["right"])},
            flags=(*(name for name, found in one_sided.items() if found), *flags),
        )

    async def _sampled(self, row: ContrastiveRow, writer: Writer) -> list[str]:
        """Solutions, each with a seed of its own; one that came to no end is left out."""
        told = self.parameters
        system, prompt = self.wording("solver.system"), self.wording("contrastive.solution", question=row.question)
        found = []
        for number in range(told.samples):
            try:
                solution = await writer.prose(
                    prompt,
                    system=system,
                    max_tokens=told.answer_tokens,
                    temperature=told.sample_temperature,
                    seed=told.seed + number,
                )
            except Discarded as unusable:
                if unusable.reason == "too_long":
                    raise
                continue
            found.append(solution)
        return found

    async def _split(self, row: ContrastiveRow, solutions: list[str], writer: Writer) -> dict[Agreement, list[str]]:
        halves: dict[Agreement, list[str]] = {"right": [], "wrong": [], "unknown": []}
        for solution in solutions:
            agreement = await self._agreements.of(
                writer, solution, question=row.question, ground_truth=row.ground_truth
            )
            halves[agreement].append(solution)
        return halves

    async def _distilled(
        self, row: ContrastiveRow, halves: dict[Agreement, list[str]], writer: Writer
    ) -> tuple[Criterion, ...]:
        told = self.parameters
        right, wrong = (
            [one[: told.solution_characters] for one in halves[half][: told.shown]] for half in ("right", "wrong")
        )
        prompt = self.wording(
            "contrastive.rubric",
            question=row.question,
            ground_truth=row.ground_truth,
            right=right,
            wrong=wrong,
            most=min(told.asked, told.most),
        )
        shape = _bounded(told.most_suggest, told.most_pitfall, told.most_bonus)
        written = await self.drafted(writer, shape, prompt)
        if not written.suggest:
            raise Discarded("too_few", "no suggest item, and at least one is needed")
        texts = {"suggest": written.suggest, "pitfall": written.pitfall, "bonus": written.bonus}
        for kind, most in (
            ("suggest", told.most_suggest),
            ("pitfall", told.most_pitfall),
            ("bonus", told.most_bonus),
        ):
            if len(texts[kind]) > most:
                raise Discarded("too_many", f"{len(texts[kind])} {kind} items, and at most {most} are taken")
        items = [(kind, text) for kind in texts for text in texts[kind]] + [("answer", written.answer)]
        drafts = [Draft(_untagged(text), kind) for kind, text in items]
        check_drafts(drafts, Rules(2, told.most, KINDS, 1, 1), references=halves["right"] + halves["wrong"])
        await self._check_answer(row, drafts[-1].description, writer)
        return tuple(
            one.model_copy(update={"verification": ByMath(method="math", expected=row.ground_truth)})
            if one.kind == "answer"
            else one
            for one in named_by_kind(drafts)
        )

    async def _check_answer(self, row: ContrastiveRow, item: str, writer: Writer) -> None:
        if names(item, row.ground_truth):
            return
        said = item.rstrip(" .")
        if await self._agreements.of(writer, said, question=row.question, ground_truth=row.ground_truth) != "right":
            raise Discarded("wrong_reference_answer", f"the answer item does not name the correct answer: {item!r}")


def _untagged(text: str) -> str:
    """An item without the tag that its kind says already."""
    for kind in KINDS:
        for tag in (f"<{kind}>", f"{kind}:"):
            if text.strip().casefold().startswith(tag):
                return text.strip()[len(tag) :].strip()
    return text.strip()
