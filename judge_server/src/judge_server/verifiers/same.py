"""Whether two terms denote the same: numbers and quantities, relations, lists, sets of numbers and matrices."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from judge_server.verifiers import units
from judge_server.verifiers.terms import Term, number
from judge_server.verifiers.units import Unit
from judge_server.verifiers.values import approximate, equal_numbers, is_scalar, ratio_is_constant, rational, symbols

MAX_ITEMS = 100
"""The most items of a list or set that is compared in any order."""


def same(a: Term, b: Term) -> bool:
    """Whether two terms denote the same."""
    if a == b:
        return True
    a, b = _spread(_one_of_equals(a)), _spread(_one_of_equals(b))
    if "quantity" in (a.head, b.head):
        return _same_quantity(a, b)
    if is_scalar(a) and is_scalar(b):
        return equal_numbers(a, b)
    if _is_about_relations(a) or _is_about_relations(b):
        return _same_relation(a, b)
    if a.head == b.head == "symbol":
        return a.text == b.text
    if _is_set(a) or _is_set(b):
        return _same_sets(a, b)
    if a.head in ("list", "set") and b.head in ("list", "set"):
        return not _is_other_choice(a, b) and _same_items(a.parts, b.parts)
    for single, other in ((a, b), (b, a)):
        if single.head == "set" and len(single.parts) == 1 and is_scalar(other):
            return same(single.parts[0], other)
    a, b = _as_vector(a, b), _as_vector(b, a)
    if a.head != b.head or len(a.parts) != len(b.parts):
        return False
    if a.head in ("interval", "matrix", "sequence", "row", "tuple"):
        texts = {a.text.replace("<>", ""), b.text.replace("<>", "")}
        return len(texts) == 1 and all(map(same, a.parts, b.parts))
    if a.head in ("add", "multiply", "divide", "power", "call", "negate", "inverse", "plus_minus"):
        return a.text == b.text and all(map(same, a.parts, b.parts))
    return False


def _is_other_choice(a: Term, b: Term) -> bool:
    """Whether "or" joins the letters of one answer only: `p or q` is not `p and q`, although `1 or 2` is `1, 2`."""
    is_letters = all(part.head == "symbol" for part in (*a.parts, *b.parts))
    return is_letters and a.text != b.text and "or" in (a.text, b.text)


def _one_of_equals(term: Term) -> Term:
    """Return the first value of `1/2 or 0.5`, which are one value written in two ways."""
    if term.head == "list" and term.text == "or" and len(term.parts) == 2 and term.parts[0] != term.parts[1]:
        first, second = term.parts
        if "relation" not in (first.head, second.head) and same(first, second):
            return first
    return term


def _as_vector(term: Term, other: Term) -> Term:
    """Return a tuple as the matrix that the other answer is: a column, a row, or rows in brackets."""
    rows, is_bracketed = term.parts, [each.text == "[]" for each in (term, *term.parts)]
    if (
        other.head != "matrix"
        or other.text
        or not (term.head == "tuple" or (term.head == "interval" and is_bracketed[0]))
    ):
        return term
    if all(is_bracketed):
        return Term("matrix", tuple(Term("row", row.parts) for row in rows))
    if all(len(row.parts) == 1 for row in other.parts):
        return Term("matrix", tuple(Term("row", (row,)) for row in rows))
    return Term("matrix", (Term("row", rows),)) if len(other.parts) == 1 else term


def _spread(term: Term) -> Term:
    r"""Write `a \pm b` as the list of both values."""
    parts = term.parts
    if term.head == "plus_minus":
        return Term("list", (parts[0], Term("negate", parts)), text="or")
    if term.head == "add":
        places = [place for place, part in enumerate(parts) if part.head == "plus_minus"]
        if len(places) != 1:
            return term
        before, (amount,), after = parts[: places[0]], parts[places[0]].parts, parts[places[0] + 1 :]
        both = (amount, Term("negate", (amount,)))
        return Term("list", tuple(Term("add", (*before, each, *after)) for each in both), text="or")
    if term.head in ("list", "set"):
        pairs = [(part, _spread(part)) for part in parts]
        items = [
            item
            for part, each in pairs
            for item in (each.parts if each.head == "list" and part.head != "list" else (part,))
        ]
        return replace(term, parts=tuple(items))
    if term.head in ("divide", "multiply") and parts and parts[0].head in ("add", "plus_minus"):
        top = _spread(parts[0])
        if top.head == "list":
            return Term("list", tuple(Term(term.head, (part, *parts[1:])) for part in top.parts), text="or")
    return term


def _same_items(a: Sequence[Term], b: Sequence[Term]) -> bool:
    """Whether two lists have the same items, in any order, each as often."""
    if len(a) != len(b):
        return False
    numbers = [
        [rational(item) if is_scalar(item) and not symbols(item) else None for item in items] for items in (a, b)
    ]
    if None not in numbers[0] and None not in numbers[1]:
        return Counter(numbers[0]) == Counter(numbers[1])
    if all(map(same, a, b)):
        return True
    if len(a) > MAX_ITEMS:
        return False
    rest = list(b)
    for item in a:
        found = next((index for index, other in enumerate(rest) if same(item, other)), None)
        if found is None:
            return False
        rest.pop(found)
    return True


# Quantities


def _same_quantity(a: Term, b: Term) -> bool:
    if a.unit is None or b.unit is None:
        quantity, bare = (b, a) if a.unit is None else (a, b)
        return _is_bare_amount(quantity, bare)
    (amount_a,), (amount_b,) = a.parts, b.parts
    unit_a, unit_b = a.unit, b.unit
    if unit_a.things and unit_b.things and unit_a.things != unit_b.things:
        return False
    if {unit_a.dimensions, unit_b.dimensions} == {(("degree", 1),), (("rad", 1),)}:
        return same(*(_radians(term) if term.unit == _DEGREE else term.parts[0] for term in (a, b)))
    if {unit_a, unit_b} == {units.CURRENCIES["£"], _POUND} or _is_rate(unit_a, unit_b) or _is_rate(unit_b, unit_a):
        return same(amount_a, amount_b)
    if unit_a.dimensions != unit_b.dimensions:
        return False
    if unit_a.size == unit_b.size:
        return same(amount_a, amount_b)
    return same(_times(amount_a, unit_a.size), _times(amount_b, unit_b.size))


_DEGREE = Unit((("degree", 1),))
_POUND = units.unit_of("pounds", glued=False)


def _is_rate(unit: Unit, plain: Unit) -> bool:
    """Whether a unit is an amount of money or a percentage for each period of time, and the other one its base."""
    period = [(base, power) for base, power in unit.dimensions if (base, power) in (("s", -1), ("month", -1))]
    if len(period) != 1 or tuple(each for each in unit.dimensions if each != period[0]) != plain.dimensions:
        return False
    seconds = (1, 60, 3600, 86400, 604800) if period[0][0] == "s" else (1, 12)
    is_known = plain.dimensions == (("percent", 1),) or any(
        plain.dimensions == each.dimensions for each in units.CURRENCIES.values()
    )
    return is_known and any(unit.size * length == plain.size for length in seconds)


def _is_bare_amount(quantity: Term, bare: Term) -> bool:
    """Whether a number without a unit is the amount of a quantity.

    A percentage is also its hundredth, an angle in degrees also its radians, and a unit that changes the number counts.
    """
    unit, amount = quantity.unit, quantity.parts[0]
    if unit is None:
        return False
    if bare.head == "relation":
        value = _unwrapped(bare)
        return value is not None and (_is_bare_amount if value[1].unit is None else same)(quantity, value[1])
    if unit.dimensions == (("percent", 1),) and same(_times(amount, unit.size / 100), bare):
        return True
    if unit == _DEGREE and _mentions_pi(bare) and same(_radians(quantity), bare):
        return True
    if unit == _DEGREE and _mentions_pi(amount):  # `π/4 degrees` is not the π/4 of radians
        return False
    return not unit.needed and same(amount, bare)


def _radians(quantity: Term) -> Term:
    return Term("multiply", (quantity.parts[0], Term("divide", (Term("symbol", text="\\pi"), number(180)))))


def _mentions_pi(term: Term) -> bool:
    return term.text == "\\pi" or any(map(_mentions_pi, term.parts))


def _times(amount: Term, size: Fraction) -> Term:
    if amount.head == "number":
        return Term("number", value=amount.value * size)
    return Term("multiply", (amount, number(size)))


# Relations and sets


class _Span(NamedTuple):
    """An interval: its ends (None: unbounded), and whether each belongs to it."""

    low: Term | None
    has_low: bool
    high: Term | None
    has_high: bool


_Set = tuple[str, list[_Span]]
"""The variable of a set of numbers (or nothing), and its intervals."""

_ALL_NUMBERS = _Span(None, False, None, False)
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


def _is_about_relations(term: Term) -> bool:
    return term.head == "relation" or (term.head == "list" and any(part.head == "relation" for part in term.parts))


def _is_set(term: Term) -> bool:
    return term.head == "set_operation" or term.text == "\\mathbb R"


def _unwrapped(term: Term) -> tuple[str, Term] | None:
    """Return the name and value of `x = 5`; the name is empty for `2 + 3 = 5`. None for any other relation.

    The value of `x = 1/3 ≈ 0.33` is 1/3. A name of several variables, as in `(x, y) = (1, 2)`, is a name too.
    """
    if term.head != "relation":
        return None
    signs = term.text.split()
    if len(term.parts) != len(signs) + 1:
        return None
    first, last = term.parts[0], term.parts[-1]
    if signs == ["in"] and first.head == "symbol":
        return first.text, last
    if not set(signs) <= {"=", "~"}:
        return None
    if _is_name(first):
        name, values, between = first, term.parts[1:], signs[1:]
    elif len(term.parts) == 2 and _is_name(last) and signs == ["="]:
        name, values, between = last, term.parts[:1], []
    else:
        name, values, between = None, term.parts, signs
        if any(symbols(value) for value in values):
            return None
    if name is not None and _names_in(name) & symbols(values[0]):
        return None
    for index, sign in enumerate(between):
        if not (is_roughly if sign == "~" else same)(values[index], values[index + 1]):
            return None
    return "" if name is None else _shown(name), values[0]


def _names_in(name: Term) -> set[str]:
    return {name.text} if name.head == "call" and name.text.startswith("of ") else symbols(name)


def is_roughly(exact: Term, decimal: Term) -> bool:
    """Whether a decimal is a value rounded or cut off, with however few digits."""
    terms = [term.parts[0] if term.head == "quantity" else term for term in (exact, decimal)]
    if not all(is_scalar(term) and not symbols(term) for term in terms):
        return False
    a, b = (approximate(term) for term in terms)
    if a is None or b is None:
        return False
    inner = terms[1].parts[0] if terms[1].head == "negate" else terms[1]
    step = 10.0 ** -min(inner.places, 300) if inner.head == "number" else 0.0
    off = abs(a - b)
    return a * b >= 0 and (off <= max(step / 2, 1e-3 * abs(a)) or (abs(b) <= abs(a) and off < step))


def _is_name(term: Term) -> bool:
    """Whether a term is what an equation gives a value: a variable, a function's value, or a length such as `|AB|`."""
    if term.head == "symbol":
        return term.text not in ("\\pi", "e", "i", "\\infty", "\\emptyset")
    if term.head == "tuple":
        return all(part.head == "symbol" and _is_name(part) for part in term.parts)
    if term.head == "sequence":
        return bool(term.parts) and all(map(_is_name, term.parts))
    if term.head == "call" and term.text == "abs":
        return term.parts[0].head in ("symbol", "multiply") and _is_length(term.parts[0])
    return (term.head == "call" and term.text.startswith("of ")) or (
        term.head in ("multiply", "divide") and _is_length(term)
    )


def _is_length(term: Term) -> bool:
    """Whether a term is capital letters side by side, or a quotient of such."""
    if term.head == "symbol":
        return term.text[0].isupper()
    return term.head in ("multiply", "divide") and all(map(_is_length, term.parts))


def _shown(name: Term) -> str:
    """Return a name as text."""
    if name.head == "symbol":
        return name.text
    return f"{name.head} {name.text} {' '.join(map(_shown, name.parts))}"


def _items(term: Term) -> tuple[Term, ...]:
    return term.parts if term.head == "list" else (term,)


class _Named(NamedTuple):
    """Values of one name; of `x_1 = 1, x_2 = 2`, the name is `x` and `indexed` is true."""

    name: str
    values: tuple[Term, ...]
    indexed: bool


def _values_of_one_name(term: Term) -> _Named | None:
    """Return the name and the values of `x = 1 or x = 2`, or of `x = 1, 2`; None for any other answer."""
    names: list[str] = []
    values = []
    for item in _items(term):
        if item.head == "relation":
            value = _unwrapped(item)
            if value is None:
                return None
            names.append(value[0])
            values.append(value[1])
        elif not names:
            return None
        else:
            values.append(item)
    if len(set(names)) == 1:
        return _Named(names[0], tuple(values), indexed=False)
    bases = {re.sub(r"_\d{1,3}$", "", name, flags=re.ASCII) for name in names}
    if len(bases) != 1 or len(set(names)) != len(values):
        return None
    return _Named(bases.pop(), tuple(values), indexed=True)


def _one_by_one(term: Term, other: Term) -> Term:
    """Return `(x, y) = (1, 2)` as `x = 1, y = 2` if the other answer is such a list."""
    if term.head != "relation" or term.text != "=" or other.head != "list" or not _is_about_relations(other):
        return term
    names, values = term.parts
    if not names.head == values.head == "tuple" or len(names.parts) != len(values.parts) or not _is_name(names):
        return term
    pairs = zip(names.parts, values.parts, strict=True)
    return Term("list", tuple(Term("relation", pair, text="=") for pair in pairs), text=",")


def _same_relation(a: Term, b: Term) -> bool:
    a, b = _one_by_one(a, b), _one_by_one(b, a)
    values_a, values_b = _values_of_one_name(a), _values_of_one_name(b)
    if values_a and values_b:
        both_indexed = values_a.indexed and values_b.indexed
        if not both_indexed and (not values_a.name or not values_b.name or values_a.name == values_b.name):
            return same(_listed(values_a.values, a.text), _listed(values_b.values, b.text))
    elif _values_in_order(a, b) or _values_in_order(b, a):
        return True
    elif values_a and not _is_about_relations(b):
        return same(_listed(values_a.values, a.text), b)
    elif values_b and not _is_about_relations(a):
        return same(a, _listed(values_b.values, b.text))
    if _same_sets(a, b):
        return True
    items_a, items_b = _items(a), _items(b)
    if len(items_a) != len(items_b) or not (_is_about_relations(a) and _is_about_relations(b)):
        return False
    if len(items_a) > 1:
        joined = {a.text, b.text}
        is_other = joined == {"and", "or"} or (joined == {",", "or"} and len(symbols(a)) > 1)
        return not is_other and _same_items(items_a, items_b)
    return _same_single_relation(a, b)


def _values_in_order(named: Term, bare: Term) -> bool:
    """Whether the values of `x = 1, y = 2` are those of a list or tuple, in its order; x, y and z have their own."""
    is_list = bare.head == "list" and not _is_about_relations(bare)
    if not (is_list or (bare.head == "tuple" and not bare.text)) or len(_items(named)) != len(bare.parts):
        return False
    values = [_unwrapped(item) for item in _items(named)]
    names = {value[0] for value in values if value is not None}
    if not is_list and len(names) < len(values):
        return False
    if not is_list and names <= {"x", "y", "z"}:
        values.sort(key=lambda value: "" if value is None else value[0])
    return all(value is not None and same(value[1], item) for value, item in zip(values, bare.parts, strict=True))


def _listed(values: tuple[Term, ...], joiner: str) -> Term:
    return values[0] if len(values) == 1 else Term("list", values, text=joiner)


def _oriented(term: Term) -> tuple[list[str], tuple[Term, ...]]:
    """Return the signs and parts of a relation, those of a falling chain in reverse."""
    signs, parts = term.text.split(), term.parts
    if len(parts) == len(signs) + 1 and all(sign in (">", ">=") for sign in signs):
        return [_FLIPPED[sign] for sign in reversed(signs)], parts[::-1]
    return signs, parts


def _same_single_relation(a: Term, b: Term) -> bool:
    if a.head != "relation" or b.head != "relation":
        return False
    open_a, open_b = (len(term.parts) == len(term.text.split()) for term in (a, b))
    if open_a or open_b:
        return _same_open_relation(a, b, open_a, open_b)
    (signs_a, parts_a), (signs_b, parts_b) = _oriented(a), _oriented(b)
    if signs_a != signs_b or len(parts_a) != len(parts_b):
        return False
    if all(map(same, parts_a, parts_b)):
        return True
    if signs_a in (["="], ["!="], ["~"]) and all(map(same, parts_a, parts_b[::-1])):
        return True
    if not all(map(is_scalar, (*parts_a, *parts_b))) or not set(signs_a) <= {"=", "!=", "<", "<="}:
        return False
    differences = [
        [Term("add", (left, Term("negate", (right,)))) for left, right in pairwise(parts)]
        for parts in (parts_a, parts_b)
    ]
    return all(
        ratio_is_constant(x, y, positive=sign in ("<", "<=")) for x, y, sign in zip(*differences, signs_a, strict=True)
    )


def _same_open_relation(a: Term, b: Term, open_a: bool, open_b: bool) -> bool:
    """Compare relations of which one has nothing before its sign, as in `\\geq 5`; a single name may stand there."""
    if len(a.text.split()) != 1 or len(b.text.split()) != 1:
        return False
    sign_a, sign_b = a.text, b.text
    right_a, right_b = a.parts[-1], b.parts[-1]
    for term, is_open in ((a, open_a), (b, open_b)):
        if not is_open and not _is_name(term.parts[0]):
            return False
    return sign_a == sign_b and same(right_a, right_b)


def _same_sets(a: Term, b: Term) -> bool:
    """Whether two sets of numbers are the same, given as intervals or as solved inequalities."""
    set_a, set_b = _spans(a), _spans(b)
    if set_a is None or set_b is None or len(set_a[1]) != len(set_b[1]):
        return False
    if set_a[0] and set_b[0] and set_a[0] != set_b[0]:
        return False
    ordered_a, ordered_b = _ordered(set_a[1]), _ordered(set_b[1])
    return ordered_a is not None and ordered_b is not None and all(map(_same_span, ordered_a, ordered_b))


def _same_span(a: _Span, b: _Span) -> bool:
    ends = ((a.low, b.low), (a.high, b.high))
    closed = (a.has_low, a.has_high) == (b.has_low, b.has_high)
    return closed and all(x is y if x is None or y is None else same(x, y) for x, y in ends)


def _ordered(spans: Sequence[_Span]) -> list[_Span] | None:
    ends = []
    for span in spans:
        least = float("-inf") if span.low is None else approximate(span.low)
        most = float("inf") if span.high is None else approximate(span.high)
        if least is None or most is None:
            return list(spans) if len(spans) == 1 else None
        ends.append((least, most))
    return [span for _, span in sorted(zip(ends, spans, strict=True), key=lambda placed: placed[0])]


def _spans(term: Term) -> _Set | None:
    """Return the variable (or nothing) and the intervals of a set of numbers; None for any other term."""
    if term.head == "relation":
        return _relation_spans(term)
    if term.head == "interval" or (term.head == "tuple" and len(term.parts) == 2 and not term.text):
        low, high = (None if _is_unbounded(part) else part for part in term.parts)
        has_low, has_high = term.text.startswith("["), term.text.endswith("]")
        return "", [_Span(low, has_low and low is not None, high, has_high and high is not None)]
    if term.head == "set":
        return "", [_Span(part, True, part, True) for part in term.parts]
    if term.head == "symbol" and term.text == "\\mathbb R":
        return "", [_ALL_NUMBERS]
    return _joined_spans(term) if term.head in ("list", "set_operation") else None


def _joined_spans(term: Term) -> _Set | None:
    """Return the numbers of sets that are listed or joined."""
    found = [_spans(part) for part in term.parts]
    sets = [each for each in found if each is not None]
    names = {name for name, _ in sets if name}
    if len(sets) < len(found) or (term.head == "list" and len(names) != 1):
        return None
    name = names.pop() if term.head == "list" else ""
    parts = [spans for _, spans in sets]
    if term.text in ("union", "or"):
        return name, [span for spans in parts for span in spans]
    if term.text == "without":
        spans = _complement(parts[1]) if parts[0] == [_ALL_NUMBERS] else None
    elif term.head != "list":
        return None
    elif all(part.text == "!=" for part in term.parts):
        spans = _complement([_Span(below.high, True, below.high, True) for below, _ in parts])
    else:
        spans = _intersected(parts)
    return None if spans is None else (name, spans)


def _complement(spans: Sequence[_Span]) -> list[_Span] | None:
    """Return all numbers but those of some intervals; None if the order of the intervals is not known."""
    taken = _ordered(spans)
    if not taken or any(span.low is None for span in taken[1:]) or any(span.high is None for span in taken[:-1]):
        return None
    gaps = []
    low: Term | None = None
    has_low = False
    for span in taken:
        if span.low is not None:
            gaps.append(_Span(low, has_low, span.low, not span.has_low))
        low, has_low = span.high, not span.has_high
    return gaps if low is None else [*gaps, _Span(low, has_low, None, False)]


def _is_unbounded(term: Term) -> bool:
    return (term.parts[0] if term.head == "negate" else term).text == "\\infty"


def _relation_spans(term: Term) -> _Set | None:
    signs, parts = _oriented(term)
    if len(parts) != len(signs) + 1:
        return None
    if signs == ["in"] and parts[0].head == "symbol":
        inner = _spans(parts[1])
        return None if inner is None else (parts[0].text, inner[1])
    names = [index for index, part in enumerate(parts) if part.head == "symbol" and _is_name(part)]
    if len(names) != 1 or any(symbols(part) for index, part in enumerate(parts) if index != names[0]):
        return None
    at = names[0]
    name, other = parts[at].text, parts[1 - at]
    if signs == ["!="]:
        return name, [_Span(None, False, other, False), _Span(other, False, None, False)]
    if signs == ["="]:
        return name, [_Span(other, True, other, True)]
    if len(signs) > 2 or not set(signs) <= {"<", "<="} or (len(signs) == 2 and at != 1):
        return None
    low, high = (
        None if beside is None or _is_unbounded(beside) else beside
        for beside in (None if at == 0 else parts[at - 1], None if at == len(signs) else parts[at + 1])
    )
    return name, [_Span(low, at > 0 and signs[at - 1] == "<=", high, at < len(signs) and signs[at] == "<=")]


def _intersected(sets: Sequence[list[_Span]]) -> list[_Span] | None:
    """Intersect half-lines: one that begins and one that ends."""
    spans = [spans[0] for spans in sets if len(spans) == 1]
    lower = [span for span in spans if span.high is None and span.low is not None]
    upper = [span for span in spans if span.low is None and span.high is not None]
    if len(sets) != 2 or len(lower) != 1 or len(upper) != 1:
        return None
    return [_Span(lower[0].low, lower[0].has_low, upper[0].high, upper[0].has_high)]
