"""Verdicts on several criteria written as one JSON answer: the schema that asks for them, and what a text says.

A text is believed where it names a verdict and nowhere else: an item that is missing, cut off, contradicted or not on
offer is a failure of its own criterion and leaves the others alone (docs/decisions/0012). Items under numbers that were
not asked for are a failure of all: nothing tells which criterion they mean.
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
"""How long one item's reason may be."""

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
    """What one criterion's item must hold.

    `value` names it: `satisfied` is a boolean, `grade` an integer in 0..high, `awarded` a number, 0..high being asked
    for and any finite one read. `steps`
    are the step numbers that may be named besides 0 (the whole response) and -1 (none); None if no step is asked.
    `reason` asks for a reason, before the value.
    """

    value: Literal["satisfied", "grade", "awarded"]
    high: float = 1.0
    steps: tuple[int, ...] | None = None
    reason: bool = False

    @property
    def steps_on_offer(self) -> tuple[int, ...]:
        """Every step number that may be named; none if no step is asked."""
        return () if self.steps is None else tuple(dict.fromkeys((*self.steps, WHOLE_RESPONSE, NO_STEP)))

    @property
    def permitted(self) -> str:
        """The values permitted, in words."""
        if self.value == "satisfied":
            return "true or false"
        return f"{'an integer' if self.value == 'grade' else 'a number'} from 0 to {self.high:g}"


@dataclass(frozen=True, slots=True)
class Item:
    """What the judge wrote of one criterion: `satisfied` is 1.0 or 0.0. `step` and `reason` are None if not asked.

    A reason asked for and not given is None as well; one that is too long is shortened to `REASON_CHARACTERS`.
    """

    value: float
    step: int | None
    reason: str | None


def items_schema(forms: Sequence[ItemForm]) -> str:
    """The JSON Schema, as compact JSON text, of an answer with one item per form, ids 1..k in order.

    The order of its keys is the order in which an answer is written, so they must not be sorted.
    """
    listed = {
        "type": "array",
        "prefixItems": [_object(_properties(number, form)) for number, form in enumerate(forms, 1)],
        "minItems": len(forms),
        "maxItems": len(forms),
    }
    return json.dumps(_object({"verdicts": listed}), separators=(",", ":"))


def json_output_tokens(forms: Sequence[ItemForm]) -> int:
    """How many tokens such an answer has room for, indented, and with reasons in a language that takes many."""
    return _FRAME_TOKENS + sum(_ITEM_TOKENS + (_REASON_TOKENS if form.reason else 0) for form in forms)


def read_items(text: str, cut: bool, forms: Sequence[ItemForm]) -> list[Item | CallFailure]:
    """What `text` says of each form, in their order; never raises.

    `cut` says that the text ended at its limit of tokens. The last answer in the text that is whole counts, or else
    the last one as far as it goes; an earlier one that says otherwise of a criterion makes it fail. Failures are of
    the kind `parse`.

    Items are known by their ids, 1..k, or 0..k-1 where they are all of these; the only item about a single criterion
    may have none. Without such an answer, items that stand one by one in the text are one, and so are lines of nothing
    but one value each, as many as there are forms.
    """
    if len(text) > MAX_JSON_TEXT_CHARACTERS:
        detail = f"the judge wrote {len(text)} characters, and at most {MAX_JSON_TEXT_CHARACTERS} are read"
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
    """Every answer in a text, in order."""
    found = list(find_values(_decoded(text)))
    answers = [_Answer(_listed(one, len(forms)), one.ended, forms) for one in found]
    answers = [answer for answer in answers if answer.items or answer.strays]
    if answers:
        return answers
    alone = [one for one in found if isinstance(one.value, dict) and one.ended == "whole"]
    if len(alone) > 1 and not any(one.ended == "broken" for one in found):
        answer = _Answer([one.value for one in alone], found[-1].ended, forms)
        return [answer] if answer.items or answer.strays else []
    return [] if found else _lines_of_values(text, forms)


def _decoded(text: str) -> str:
    """A text that is nothing but a JSON string, as what the string holds."""
    stripped = text.strip()
    if len(stripped) > 1 and stripped[0] == stripped[-1] == '"':
        try:
            held = json.loads(stripped, strict=False)
        except (ValueError, RecursionError):
            return text
        return str(held)
    return text


def _listed(found: ParsedValue, asked: int) -> list[object]:
    """The finished items of a value, also where its list is JSON in a string; none if it is not an answer's shape."""
    listed: object = found.value
    if isinstance(listed, dict):
        listed = listed.get("verdicts", [listed] if asked == 1 else None)
    if isinstance(listed, str):
        held = list(find_values(listed))
        listed = held[0].value if len(held) == 1 and held[0].ended == "whole" else None
        return listed if isinstance(listed, list) else []
    return [item for item in listed if found.finished(item)] if isinstance(listed, list) else []


def _lines_of_values(text: str, forms: Sequence[ItemForm]) -> list["_Answer"]:
    """An answer of lines: `true` and `false` alone or numbered, other values numbered; none if any line is not."""
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
    """One answer's items by the criterion they speak of, or the numbers among theirs that stand for none.

    Attributes:
        ended: how the JSON of it ended.
        items: the items of each criterion, numbered from 1.
        strays: the ids that were not asked for; then there are no items.
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
    """An item that speaks of a criterion, and which of the text's answers it stands in."""

    answer: int
    item: dict[str, object]


def _mentions(answers: Sequence[_Answer]) -> dict[int, list[_Mention]]:
    of: dict[int, list[_Mention]] = defaultdict(list)
    for number, answer in enumerate(answers):
        for criterion, items in answer.items.items():
            of[criterion] += [_Mention(number, item) for item in items]
    return of


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
    """The item, or what is wrong with it."""
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
        return math.isfinite(value)  # one outside 0..high is clipped where it becomes a score
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
    """A reason as text that can be stored: surrogate pairs joined, what no encoding or database takes replaced."""
    if not isinstance(raw, str):
        return None
    text = replace_lone_surrogates(raw).replace("\0", "\ufffd").strip()
    return text if len(text) <= REASON_CHARACTERS else text[: REASON_CHARACTERS - 1] + "…"


def _missing_item_reason(text: str, cut: bool, answer: _Answer | None) -> str:
    """What to add to a failure about a criterion that the answer does not have."""
    began = excerpt(text)
    if not began:
        return ": it wrote nothing"
    if answer is None and not cut:
        return f": no verdicts in what it wrote, which began {began!r}"
    if answer is not None and answer.ended == "broken":
        return f": the answer stops being JSON before it; it began {began!r}"
    if (answer is None and cut) or (answer is not None and answer.ended == "cut"):
        return f": the answer was cut off before it; ask fewer criteria per call. It began {began!r}"
    return ""


def excerpt(text: str) -> str:
    """The first words of what a judge wrote, in one line, for a failure to quote."""
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
