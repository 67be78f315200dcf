"""Verdicts on several criteria written as one JSON answer: the schema that asks for them, and the reading of a text.

A verdict is read only where the text states it. An item that is missing, cut off, contradicted or not on offer fails
its own criterion and leaves the others alone (docs/decisions/0012). Items under numbers that were not asked for fail
all criteria, because nothing tells which criterion they mean.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from judge_server.errors import replace_lone_surrogates
from judge_server.judging.tolerant_json import ParsedValue, find_values
from judge_server.ports import CallFailure
from trainer_client.steps import NO_STEP, WHOLE_RESPONSE

REASON_CHARACTERS = 240
"""The most characters of one item's reason."""

MAX_JSON_TEXT_CHARACTERS = 250_000
"""The longest text that is read at all."""

_FRAME_TOKENS, _ITEM_TOKENS, _REASON_TOKENS = 24, 48, 160
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_VALUE_LINE = re.compile(
    r"[ \t]*+(?:(?P<id>0|[1-9][0-9]{0,5})[ \t]*+[.):=-][ \t]*+)?"
    r"(?P<value>(?i:true|false)|[0-9]++(?:\.[0-9]++)?),?[ \t]*+"
)


@dataclass(frozen=True, slots=True)
class ItemForm:
    """The form of one criterion's item.

    `value` is the key of its value: `satisfied` is a boolean, `grade` an integer in 0..high, and `awarded` a number,
    asked for in 0..high and read if finite. `steps` are the step numbers that may be named besides 0 (the whole
    response) and -1 (none); None if no step is asked for. `reason` asks for a reason before the value.
    """

    value: Literal["satisfied", "grade", "awarded"]
    high: float = 1.0
    steps: tuple[int, ...] | None = None
    reason: bool = False

    @property
    def steps_on_offer(self) -> tuple[int, ...]:
        """Every step number that may be named; empty if no step is asked for."""
        return () if self.steps is None else tuple(dict.fromkeys((*self.steps, WHOLE_RESPONSE, NO_STEP)))

    @property
    def permitted(self) -> str:
        """The permitted values, in words."""
        if self.value == "satisfied":
            return "true or false"
        return f"{'an integer' if self.value == 'grade' else 'a number'} from 0 to {self.high:g}"


@dataclass(frozen=True, slots=True)
class Item:
    """What the judge wrote about one criterion; `satisfied` becomes 1.0 or 0.0.

    `step` is None if not asked for. `reason` is None if not asked for or not given, and is cut to `REASON_CHARACTERS`.
    """

    value: float
    step: int | None
    reason: str | None


def items_schema(forms: Sequence[ItemForm]) -> str:
    """Return the JSON Schema, as compact JSON text, of an answer with one item per form, with ids 1..k in order.

    The model writes keys in the order of the schema, so they must not be sorted.
    """
    listed = {
        "type": "array",
        "prefixItems": [_object(_properties(number, form)) for number, form in enumerate(forms, 1)],
        "minItems": len(forms),
        "maxItems": len(forms),
    }
    return json.dumps(_object({"verdicts": listed}), separators=(",", ":"))


def json_output_tokens(forms: Sequence[ItemForm]) -> int:
    """Return the token limit of such an answer: room for indentation, and reasons in a token-heavy language."""
    return _FRAME_TOKENS + sum(_ITEM_TOKENS + (_REASON_TOKENS if form.reason else 0) for form in forms)


def read_items(text: str, cut: bool, forms: Sequence[ItemForm]) -> list[Item | CallFailure]:
    """Read the item of each form from `text`, in order; never raises.

    `cut` tells that the text ended at its token limit. The last complete answer in the text counts, or else the last
    one as far as it goes. A criterion fails if an earlier answer contradicts that one. Failures are of the kind
    `parse`.

    Items are matched by their ids 1..k, or 0..k-1 if all of these occur; the only item about a single criterion needs
    no id. If there is no such answer, single items that stand one by one in the text are taken as one answer, and so
    are lines that each hold nothing but one value, if there are as many as forms.
    """
    if len(text) > MAX_JSON_TEXT_CHARACTERS:
        detail = f"the judge wrote {len(text)} characters; at most {MAX_JSON_TEXT_CHARACTERS} are read"
        return [CallFailure("parse", detail) for _ in forms]
    answers = _answers(text, forms)
    whole = [number for number, answer in enumerate(answers) if answer.ended == "whole"]
    last = whole[-1] if whole else len(answers) - 1
    if answers and (strays := answers[last].strays):
        detail = f"the judge numbered its verdicts {', '.join(map(str, strays))}; the criteria are 1 to {len(forms)}"
        return [CallFailure("parse", detail) for _ in forms]
    mentions: Mapping[int, list[_Mention]] = _mentions(answers)
    lacking = _missing_item_reason(text, cut, answers[last] if answers else None)
    return [_outcome(n, form, mentions.get(n, []), last, lacking) for n, form in enumerate(forms, 1)]


def _answers(text: str, forms: Sequence[ItemForm]) -> list["_Answer"]:
    """Return every answer in a text, in order."""
    values = list(find_values(_decoded(text)))
    answers = [_Answer(_listed(one, len(forms)), one.ended, forms) for one in values]
    answers = [answer for answer in answers if answer.items or answer.strays]
    if answers:
        return answers
    single_items = [one for one in values if isinstance(one.value, dict) and one.ended == "whole"]
    if len(single_items) > 1 and not any(one.ended == "broken" for one in values):
        answer = _Answer([one.value for one in single_items], values[-1].ended, forms)
        return [answer] if answer.items or answer.strays else []
    return [] if values else _lines_of_values(text, forms)


def _decoded(text: str) -> str:
    """Decode a text that is nothing but a JSON string; return any other text unchanged."""
    stripped = text.strip()
    if len(stripped) > 1 and stripped[0] == stripped[-1] == '"':
        try:
            held = json.loads(stripped, strict=False)
        except (ValueError, RecursionError):
            return text
        return str(held)
    return text


def _listed(found: ParsedValue, asked: int) -> list[object]:
    """Return the finished items of a value, whose list may be JSON in a string; empty if it has another shape."""
    listed: object = found.value
    if isinstance(listed, dict):
        listed = listed.get("verdicts", [listed] if asked == 1 else None)
    if isinstance(listed, str):
        held = list(find_values(listed))
        listed = held[0].value if len(held) == 1 and held[0].ended == "whole" else None
        return listed if isinstance(listed, list) else []
    return [item for item in listed if found.finished(item)] if isinstance(listed, list) else []


def _lines_of_values(text: str, forms: Sequence[ItemForm]) -> list["_Answer"]:
    """Read lines of one value each as an answer: `true` and `false` with or without numbers, other values numbered."""
    lines = [line for line in text.splitlines() if line.strip()]
    read = [_VALUE_LINE.fullmatch(line) for line in lines]
    if len(lines) != len(forms) or any(one is None for one in read):
        return []
    matches = [one for one in read if one is not None]
    numbered = sum(one["id"] is not None for one in matches)
    words = all(form.value == "satisfied" for form in forms)
    if numbered not in (0, len(matches)) or (numbered == 0 and not words):
        return []
    items = [
        {"id": float(one["id"] or place), form.value: one["value"]}
        for place, (one, form) in enumerate(zip(matches, forms, strict=True), 1)
    ]
    return [_Answer(items, "whole", forms)]


class _Answer:
    """One answer's items by criterion.

    Attributes:
        ended: how its JSON ended.
        items: the items of each criterion, numbered from 1; empty if there are strays.
        strays: the ids that were not asked for.
    """

    def __init__(self, listed: Sequence[object], ended: Literal["whole", "cut", "broken"], forms: Sequence[ItemForm]):
        self.ended = ended
        self.items: dict[int, list[dict[str, object]]] = defaultdict(list)
        self.strays: list[int] = []
        asked, values = len(forms), {form.value for form in forms}
        items = [item for item in listed if isinstance(item, dict)]
        if asked == len(items) == 1 and "id" not in items[0] and values & items[0].keys():
            self.items[1] = items
            return
        numbered = [(int(number), item) for item in items if (number := _whole_number(item.get("id"))) is not None]
        given = {number for number, item in numbered if 1 <= number <= asked or values & item.keys()}
        shift = 1 if given == set(range(asked)) else 0
        self.strays = sorted(number for number in given if not 1 <= number + shift <= asked)
        for number, item in () if self.strays else numbered:
            if 1 <= number + shift <= asked:
                self.items[number + shift].append(item)


@dataclass(frozen=True, slots=True)
class _Mention:
    """An item about a criterion, with the index of the answer that holds it."""

    answer: int
    item: dict[str, object]


def _mentions(answers: Sequence[_Answer]) -> dict[int, list[_Mention]]:
    mentions: dict[int, list[_Mention]] = defaultdict(list)
    for number, answer in enumerate(answers):
        for criterion, items in answer.items.items():
            mentions[criterion] += [_Mention(number, item) for item in items]
    return mentions


def _outcome(number: int, form: ItemForm, mentions: Sequence[_Mention], last: int, lacking: str) -> Item | CallFailure:
    readings = [(mention.answer, _read(mention.item, form)) for mention in mentions]
    counted = [reading for answer, reading in readings if answer == last]
    if not counted:
        return CallFailure("parse", f"the judge left out criterion {number}{lacking}")
    for reading in counted:
        if isinstance(reading, str):
            return CallFailure("parse", f"criterion {number}: {reading}")
    if len({(reading.value, reading.step) for _, reading in readings if isinstance(reading, Item)}) > 1:
        return CallFailure("parse", f"the judge gave criterion {number} more than one verdict, and they differ")
    final = counted[-1]
    assert isinstance(final, Item)
    return final


def _read(item: Mapping[str, object], form: ItemForm) -> Item | str:
    """Return the item, or what is wrong with it."""
    if form.value not in item:
        return f"the judge gave no {form.value!r}"
    raw = item[form.value]
    value = _boolean(raw) if form.value == "satisfied" else _number(raw)
    if value is None or not _is_readable(form, value):
        return f"the judge wrote {form.value!r}: {_shown(raw)}, which is not {form.permitted}"
    step = None
    if form.steps is not None:
        named = _number(item.get("step"))
        if named is None or named not in form.steps_on_offer:
            return f"the judge named step {_shown(item.get('step'))}, which was not on offer"
        step = int(named)
    return Item(value + 0.0, step, _reason(item.get("reason")) if form.reason else None)


def _is_readable(form: ItemForm, value: float) -> bool:
    if form.value == "awarded":
        return math.isfinite(value)  # a value outside 0..high is clipped when it becomes a score
    if form.value == "grade":
        return 0 <= value <= form.high and value.is_integer()
    return 0 <= value <= 1


def _boolean(raw: object) -> float | None:
    if isinstance(raw, str):
        raw = {"true": True, "false": False}.get(raw.strip().lower())
    return float(raw) if isinstance(raw, bool) else None


def _number(raw: object) -> float | None:
    if isinstance(raw, str) and _NUMBER.fullmatch(raw.strip()):
        raw = float(raw)
    return raw if isinstance(raw, float) else None


def _whole_number(raw: object) -> float | None:
    number = _number(raw)
    return number if number is not None and number.is_integer() else None


def _reason(raw: object) -> str | None:
    """Return a reason as storable text: surrogate pairs joined, lone surrogates and NUL replaced."""
    if not isinstance(raw, str):
        return None
    text = replace_lone_surrogates(raw).replace("\0", "\ufffd").strip()
    return text if len(text) <= REASON_CHARACTERS else text[: REASON_CHARACTERS - 1] + "…"


def _missing_item_reason(text: str, cut: bool, answer: _Answer | None) -> str:
    """Return what explains that the answer has no item about a criterion."""
    began = excerpt(text)
    if not began:
        return ": it wrote nothing"
    if answer is None and not cut:
        return f": it wrote no verdicts; its text began {began!r}"
    if answer is not None and answer.ended == "broken":
        return f": the answer stops being JSON before it; it began {began!r}"
    if (answer is None and cut) or (answer is not None and answer.ended == "cut"):
        return f": the answer was cut off before it; ask fewer criteria per call. It began {began!r}"
    return ""


def excerpt(text: str) -> str:
    """Return the first words of a judge's text on one line, to quote in a failure."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:1000]).split())[:80]


def _shown(raw: object) -> str:
    return f"{raw:g}" if isinstance(raw, float) else repr(raw)[:40]


def _object(properties: Mapping[str, object]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _properties(number: int, form: ItemForm) -> dict[str, object]:
    properties: dict[str, object] = {"id": {"type": "integer", "const": number}}
    if form.reason:
        properties["reason"] = {"type": "string", "maxLength": REASON_CHARACTERS}
    high = int(form.high) if float(form.high).is_integer() else form.high
    properties[form.value] = {
        "satisfied": {"type": "boolean"},
        "grade": {"type": "integer", "minimum": 0, "maximum": high},
        "awarded": {"type": "number", "minimum": 0, "maximum": high},
    }[form.value]
    if form.steps is not None:
        properties["step"] = {"type": "integer", "enum": list(form.steps_on_offer)}
    return properties
