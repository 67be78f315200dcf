"""What lint finds: a code, how bad it is, which criterion, what is wrong, and a way out."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
"""`error`: the system cannot use the rubric so, or it rewards what it should punish. `warning`: verdicts will suffer.
`note`: worth a look."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `criterion` is the id of the criterion, or None where it is the rubric as a whole."""

    code: str
    severity: Severity
    criterion: str | None
    problem: str
    advice: str

    def __str__(self) -> str:
        whose = "the rubric" if self.criterion is None else f"criterion {self.criterion}"
        return f"{self.severity} [{self.code}] {whose}: {self.problem}; {self.advice}"
