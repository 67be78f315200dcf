"""A check: the verification of one criterion by a program, and the texts it reads."""

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from typing import NamedTuple

from pydantic import JsonValue

from judge_server.verifiers.notation import same_characters
from trainer_client.final_answer import extract_final_answer
from trainer_client.final_answer.text import plain_answer
from trainer_client.steps import WHOLE_RESPONSE, Step
from trainer_client.wire.criteria import (
    ContainsVerification,
    ExactVerification,
    JsonSchemaVerification,
    JudgeVerification,
    MathVerification,
    NumericVerification,
    RegexVerification,
    ToolCallVerification,
    TurnsVerification,
    Verification,
    needs_ground_truth,
)
from trainer_client.wire.groups import Message

Program = (
    MathVerification
    | ExactVerification
    | ContainsVerification
    | RegexVerification
    | JsonSchemaVerification
    | NumericVerification
    | ToolCallVerification
    | TurnsVerification
)
"""A verification that needs no judge."""

_RULES = 8  # raise when the same check may have another result than before
_LIBRARIES = {
    "math": ("mpmath",),
    "json_schema": ("jsonschema",),
    "tool_call": ("jsonschema",),
}


class ToolUse(NamedTuple):
    """A call of a tool: the number of its turn, the tool's name, and the arguments as the policy wrote them."""

    turn: int
    name: str
    arguments: str | dict[str, JsonValue]


def tool_uses(messages: Sequence[Message], turns: Sequence[Step]) -> tuple[ToolUse, ...]:
    """Return the calls of tools in a response, given its messages and its turns."""
    said = [message for message in messages if message.role == "assistant"]
    return tuple(
        [
            ToolUse(turn.number, call.function.name, call.function.arguments)
            for turn, message in zip(turns, said, strict=True)
            for call in message.tool_calls
        ]
    )


@dataclass(frozen=True, slots=True)
class Check:
    """A verification of one response; it can be pickled.

    Attributes:
        verification: the method and what it compares with; never `judge`.
        text: the judged response.
        final_answer: what `trainer_client.final_answer.extract_final_answer` found in `text`.
        ground_truth: the group's ground truth, used if the verification has no expected answer of its own.
        true_answer: what `stated_answer` returns for it, given by callers with many checks on one ground truth.
        steps: the steps of `text`.
        names_step: whether the result names the step that the verdict belongs to.
        uses: the calls of tools in the response.
        turns: the number of its turns.
        beside: checks of the same criterion on further readings of the response, such as one without disguises. If the
            criterion is `avoided`, one that is satisfied is enough; otherwise all must be.
        avoided: whether a good response does not meet the criterion.
    """

    verification: Verification
    text: str
    final_answer: str | None
    ground_truth: str | None
    steps: tuple[Step, ...] = ()
    names_step: bool = False
    true_answer: str | None = None
    uses: tuple[ToolUse, ...] = ()
    turns: int = 1
    beside: "tuple[Check, ...]" = ()
    avoided: bool = False

    @property
    def program(self) -> Program:
        """The verification; raises `ValueError` if it is by the judge."""
        if isinstance(self.verification, JudgeVerification):
            raise ValueError("a criterion verified by the judge cannot be a check; ask the judge")
        return self.verification

    @property
    def subject(self) -> str | None:
        """The part of the response that is verified; None if it is a final answer or step that the response lacks."""
        if isinstance(self.program, ToolCallVerification):
            return json.dumps(self.uses)
        if isinstance(self.program, TurnsVerification):
            return str(self.turns)
        if self.program.of == "final_answer":
            return self.final_answer
        number = step_to_search(self.program) or WHOLE_RESPONSE
        if number == WHOLE_RESPONSE:
            return self.text
        return next((self.text[step.start : step.end] for step in self.steps if step.number == number), None)

    @property
    def expected(self) -> str | float | None:
        """What the verification compares with: its own expected answer, or the ground truth; None if there is neither.

        Both are read by the rules for final answers (`stated_answer`), unless whole responses are compared.
        """
        program = self.program
        if not isinstance(program, MathVerification | ExactVerification | NumericVerification):
            return None
        if isinstance(program.expected, str) and program.of == "final_answer":
            return plain_answer(program.expected) or program.expected
        if program.expected is not None or self.ground_truth is None:
            return program.expected
        if program.of == "response" and isinstance(program, ExactVerification):
            return self.ground_truth
        return stated_answer(self.ground_truth) if self.true_answer is None else self.true_answer

    @property
    def digest(self) -> bytes:
        """The 32-byte digest, equal for checks that must have equal results: only texts that are compared enter.

        The versions of the libraries that decide enter too.
        """
        return self.digest_with(self.program_digest(), {})

    def program_digest(self) -> bytes:
        """Return the part of the digest that is the same for every response of a group."""
        program = self.program
        content = [_RULES, _versions(program.method), program.model_dump(mode="json"), self.expected, self.names_step]
        return sha256(json.dumps(content, sort_keys=True).encode()).digest()

    def digest_with(self, program_digest: bytes, subjects: dict[str, bytes]) -> bytes:
        """Return the digest from its program part; `subjects` caches the digests of texts."""
        if self.beside:
            alone = replace(self, beside=()).digest_with(program_digest, subjects)
            return sha256(
                b"".join([b"beside", bytes([self.avoided]), alone, *(one.digest for one in self.beside)])
            ).digest()
        subject = self.subject
        if subject is None:
            return sha256(program_digest).digest()
        if subject not in subjects:
            subjects[subject] = sha256(subject.encode("utf-8", "surrogatepass")).digest()
        return sha256(program_digest + subjects[subject]).digest()


def stated_answer(ground_truth: str) -> str:
    """Return the final answer that a ground truth states, by the rules for responses; all of it if it states none."""
    if (stated := extract_final_answer(ground_truth)) is not None:
        return stated
    return ground_truth if "\n" in ground_truth.strip() else plain_answer(ground_truth) or ground_truth


def step_to_search(verification: Verification) -> int | None:
    """Return the number of the only step that a verification searches; None if it names none."""
    return verification.step if isinstance(verification, ContainsVerification | RegexVerification) else None


def missing_field(verification: Verification, ground_truth: str | None) -> str | None:
    """Return the group field that a verification needs and lacks; None if nothing is missing."""
    return "ground_truth" if needs_ground_truth(verification) and not (ground_truth or "").strip() else None


@cache
def _versions(method: str) -> list[str]:
    return [f"{name} {version(name)}" for name in _LIBRARIES.get(method, ())]


def texts_equal(a: str, b: str, *, case_sensitive: bool) -> bool:
    """Whether two texts are equal apart from white space around and repeated in them, and the form of their characters.

    Characters that read the same are the same: composed or not, curly or straight quotes, full-width or other digits.
    """
    spaced = (" ".join(same_characters(text).split()) for text in (a, b))
    folded = [_folded(text, case_sensitive) for text in spaced]
    return folded[0] == folded[1]


def find(text: str, all_of: Sequence[str], any_of: Sequence[str], *, case_sensitive: bool) -> int | None:
    """Find every text of `all_of` and, unless it is empty, one of `any_of`; None if `text` lacks them.

    Returns:
        The index in `text` of the first entry of `all_of` or, if that is empty, of the earliest match of `any_of`.
    """
    searched = _folded(text, case_sensitive)
    all_found, any_found = (
        [searched.find(_folded(needle, case_sensitive)) for needle in needles] for needles in (all_of, any_of)
    )
    matches = [at for at in any_found if at >= 0]
    if -1 in all_found or (any_found and not matches):
        return None
    at = all_found[0] if all_found else min(matches)
    if len(searched) == len(text):  # folding shortens no character, so each kept its index
        return at
    return bisect_right(range(len(text)), at, key=lambda end: len(_folded(text[:end], case_sensitive))) - 1


def _folded(text: str, case_sensitive: bool) -> str:
    return text if case_sensitive else text.casefold()
