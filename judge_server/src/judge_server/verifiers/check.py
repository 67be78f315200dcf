"""One thing for a program to verify: the criterion's method, and the texts it reads. How it decides is elsewhere."""

import json
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import version

from trainer_client.final_answer import extract_final_answer
from trainer_client.steps import WHOLE_RESPONSE, Step
from trainer_client.wire.criteria import (
    ContainsVerification,
    ExactVerification,
    JsonSchemaVerification,
    JudgeVerification,
    MathVerification,
    NumericVerification,
    RegexVerification,
    Verification,
)

Program = (
    MathVerification
    | ExactVerification
    | ContainsVerification
    | RegexVerification
    | JsonSchemaVerification
    | NumericVerification
)
"""A verification that no judge is needed for."""

_RULES = 4  # grows when the same check may come out otherwise than before
_LIBRARIES = {
    "math": ("math-verify", "latex2sympy2-extended", "sympy"),
    "json_schema": ("jsonschema",),
}


@dataclass(frozen=True, slots=True)
class Check:
    """A verification of one response; it can be pickled.

    Attributes:
        verification: the method and what it compares with; never `judge`.
        text: the judged response.
        final_answer: what `trainer_client.final_answer.extract_final_answer` found in it.
        ground_truth: the group's, compared with where the verification names nothing itself.
        steps: the steps of `text`.
        names_step: whether the finding says to which step the verdict belongs.
    """

    verification: Verification
    text: str
    final_answer: str | None
    ground_truth: str | None
    steps: tuple[Step, ...] = ()
    names_step: bool = False

    @property
    def program(self) -> Program:
        """The verification; `ValueError` where it is the judge's."""
        if isinstance(self.verification, JudgeVerification):
            raise ValueError("a criterion verified by the judge is no check; ask the judge")
        return self.verification

    @property
    def subject(self) -> str | None:
        """The part of the response that is verified; None where that is a final answer or a step that it lacks."""
        if self.program.of == "final_answer":
            return self.final_answer
        number = step_to_search(self.program) or WHOLE_RESPONSE
        if number == WHOLE_RESPONSE:
            return self.text
        return next((self.text[step.start : step.end] for step in self.steps if step.number == number), None)

    @property
    def expected(self) -> str | float | None:
        """What the verification compares with: its own, else the ground truth's; None where neither says.

        Of a ground truth that states a final answer (a worked solution), a final answer is compared with that.
        """
        program = self.program
        if not isinstance(program, MathVerification | ExactVerification | NumericVerification):
            return None
        if program.expected is not None or self.ground_truth is None:
            return program.expected
        if program.of == "response" and isinstance(program, ExactVerification):
            return self.ground_truth
        return extract_final_answer(self.ground_truth) or self.ground_truth

    @property
    def digest(self) -> bytes:
        """32 bytes, the same for checks that cannot come out differently: only texts that are compared count.

        The versions of the libraries that decide are part of it.
        """
        return self.digest_with(self.program_digest(), {})

    def program_digest(self) -> bytes:
        """The part of the digest that is the same for every response of a group."""
        program = self.program
        content = [_RULES, _versions(program.method), program.model_dump(mode="json"), self.expected, self.names_step]
        return sha256(json.dumps(content, sort_keys=True).encode()).digest()

    def digest_with(self, program_digest: bytes, subjects: dict[str, bytes]) -> bytes:
        """The digest, with the part that is known; `subjects` has the digests of texts that were hashed already."""
        subject = self.subject
        if subject is None:
            return sha256(program_digest).digest()
        if subject not in subjects:
            subjects[subject] = sha256(subject.encode("utf-8", "surrogatepass")).digest()
        return sha256(program_digest + subjects[subject]).digest()


def step_to_search(verification: Verification) -> int | None:
    """Give the number of the only step that a verification looks in; None where it names none."""
    return verification.step if isinstance(verification, ContainsVerification | RegexVerification) else None


def missing_field(verification: Verification, ground_truth: str | None) -> str | None:
    """Name the group's field without which a verification cannot be decided, or None where nothing is missing."""
    if (
        not isinstance(verification, MathVerification | ExactVerification | NumericVerification)
        or verification.expected is not None
    ):
        return None
    return None if (ground_truth or "").strip() else "ground_truth"


@cache
def _versions(method: str) -> list[str]:
    return [f"{name} {version(name)}" for name in _LIBRARIES.get(method, ())]
