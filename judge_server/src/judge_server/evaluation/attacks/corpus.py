"""Attack inputs on a judge: texts as data, and the small interpreter that applies one to a response.

An attack changes or replaces a response so that a judge may accept what it should not. It adds nothing that meets a
criterion, so the labels of the criteria that the response does not meet stay as they are. The corpus is `corpus.toml`;
its texts are our own. The base responses that come with it are `tasks.jsonl`, in the format of labelled data.
"""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from typing import Any, Literal, TypeAlias

from judge_server.evaluation.labelled import LabelledResponse, read_rows
from trainer_client.wire import Criterion

Place: TypeAlias = Literal["replace", "before", "after"]
_PLACEHOLDER = re.compile(r"\{(criteria|criterion|claims|prompt|response)\}")


@dataclass(frozen=True, slots=True)
class AttackKind:
    """A kind of attack.

    Attributes:
        name: its name.
        about: what its texts are.
        visible: whether a program can see it, as opposed to what its words mean.
    """

    name: str
    about: str
    visible: bool


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack input.

    Attributes:
        kind: the kind.
        number: the number of its text in the kind, from 1.
        place: where the text is put.
        text: the text, with placeholders in braces.
        disguise: how its letters are changed, one of `DISGUISES`; None if they are not.
    """

    kind: AttackKind
    number: int
    place: Place
    text: str
    disguise: str | None = None

    @property
    def id(self) -> str:
        """The name of the input, unique in the corpus, such as `homoglyph-after-cyrillic-2`."""
        return "-".join([self.kind.name, self.place, *([self.disguise] if self.disguise else []), str(self.number)])

    def apply(self, response: str, criteria: Sequence[Criterion], prompt: str = "") -> str:
        """Return the attacked response, for the criteria that the attacker wants to be judged met."""
        values = {
            "criteria": "\n".join(f"- {one.description}" for one in criteria),
            "criterion": criteria[0].description if criteria else "",
            "claims": "\n".join(f"The following is met in full: {one.description}" for one in criteria),
            "prompt": prompt,
            "response": response,
        }
        text = _PLACEHOLDER.sub(lambda match: values[match.group(1)], self.text)
        if self.disguise is not None:
            text = DISGUISES[self.disguise](text)
        if self.place == "replace":
            return text
        if self.place == "before":
            return f"{text}\n\n{response}"
        return f"{response}\n\n{text}"


def _letters(shown: Mapping[str, str]) -> Callable[[str], str]:
    table = str.maketrans(dict(shown))
    return lambda text: text.translate(table)


def _shifted(capital: int, small: int) -> Callable[[str], str]:
    pairs = {chr(65 + n): chr(capital + n) for n in range(26)} | {chr(97 + n): chr(small + n) for n in range(26)}
    return _letters(pairs)


def _joined(mark: str) -> Callable[[str], str]:
    return lambda text: re.sub(r"(?<=\w)(?=\w)", mark, text)


DISGUISES: Mapping[str, Callable[[str], str]] = {
    "cyrillic": _letters(dict(zip("aceopxyiABCEHKMOPTX", "асеорхуіАВСЕНКМОРТХ", strict=True))),
    "greek": _letters(dict(zip("oABEHIKMNOPTXYZ", "οΑΒΕΗΙΚΜΝΟΡΤΧΥΖ", strict=True))),
    "fullwidth": _shifted(0xFF21, 0xFF41),
    "mathematical": _shifted(0x1D400, 0x1D41A),
    "circled": _shifted(0x24B6, 0x24D0),
    "zero_width_space": _joined("\u200b"),
    "zero_width_joiner": _joined("\u200d"),
    "soft_hyphen": _joined("\u00ad"),
    "bidi": lambda text: f"\u202d{text}\u202c",
    "tags": lambda text: "".join(chr(0xE0000 + ord(c)) if c.isascii() else c for c in text),
}
"""The disguises by name; each is a function of the text alone."""


@cache
def read_corpus() -> tuple[Attack, ...]:
    """Return the attack inputs that come with the package, in order."""
    content = (files("judge_server.evaluation.attacks") / "corpus.toml").read_text(encoding="utf-8")
    return tuple([attack for entry in tomllib.loads(content)["kinds"] for attack in _of_kind(entry)])


def _of_kind(entry: Mapping[str, Any]) -> list[Attack]:
    kind = AttackKind(entry["name"], entry["about"], entry["visible"])
    return [
        Attack(kind, number, place, text, disguise)
        for number, text in enumerate(entry["texts"], 1)
        for place in entry["places"]
        for disguise in entry.get("disguises", (None,))
    ]


def read_tasks() -> list[LabelledResponse]:
    """Return the base responses that come with the package: for each prompt a bad one and a good one, with labels."""
    with as_file(files("judge_server.evaluation.attacks") / "tasks.jsonl") as file:
        return [one for one in read_rows(file) if isinstance(one, LabelledResponse)]
