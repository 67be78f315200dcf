"""A question to the judge, as data: the call, the criteria its reply has a verdict on, and how that reply is read.

Data, so that it can be asked of a judge in another process.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from judge_server.judging.calibration import UNSCALED, PlattScaling
from judge_server.judging.items import ItemForm
from judge_server.judging.replies import MIN_CHOICE_MASS, read_grade, read_json_output, read_rating, read_yes_no
from judge_server.ports import Call, CallFailure, JudgeResult, LabelChoice, Reply, TokenChoice

Reading: TypeAlias = Literal["yes_no", "grade", "rating"] | tuple[ItemForm, ...]
"""How a reply is read: as one verdict from the form of its answer, or as items written in these forms."""


@dataclass(frozen=True, slots=True)
class Question:
    """A call, the ids of the criteria its reply has a verdict on, and how to read them, in that order.

    `alone` asks for one of them by itself, by its place, where the reply left it out. `scaling` calibrates the
    probability of a verdict of yes or no. A verdict from less mass on its choices than `min_choice_mass` fails.
    """

    call: Call
    criteria: tuple[str, ...]
    reading: Reading
    alone: Callable[[int], "Question"] | None = None
    scaling: PlattScaling = UNSCALED
    min_choice_mass: float = MIN_CHOICE_MASS

    def read(self, reply: Reply) -> list[JudgeResult | CallFailure]:
        """The verdict on each of the criteria."""
        answer, reading = self.call.answer, self.reading
        if reading == "yes_no" and isinstance(answer, TokenChoice):
            return [read_yes_no(answer, reply, self.scaling, self.min_choice_mass)]
        if reading == "grade" and isinstance(answer, TokenChoice | LabelChoice):
            return [read_grade(answer, reply, self.min_choice_mass)]
        if reading == "rating" and isinstance(answer, TokenChoice):
            return [read_rating(answer, reply, self.min_choice_mass)]
        if isinstance(reading, tuple):
            return read_json_output(reading, reply)
        raise TypeError(f"{type(answer).__name__} is no form of answer to be read as {reading}")
