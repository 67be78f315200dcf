r"""Read an answer as a value: a number, a quantity, an expression, a relation, a list, a set, an interval or a matrix.

The grammar accounts for every token, so a reading that leaves a part of the text out does not exist: an answer with a
token that has no place in the grammar is not read at all (None), and is compared as text. The expected answer and the
given one are read by the same functions. Reading takes time linear in the length of the answer; brackets nest at most
`cursor.MAX_DEPTH` deep. No library for mathematics is needed here, so that numbers can be compared on the event loop.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from judge_server.verifiers import units
from judge_server.verifiers.cursor import Cursor
from judge_server.verifiers.notation import CURRENCY_SIGN, GREEK, Token, with_digits, words_in
from judge_server.verifiers.terms import (
    RELATIONS,
    NotRead,
    Term,
    is_constant,
    is_matrix,
    is_minus_one,
    mixed,
    number,
    number_term,
    scaled,
    sequence_term,
    signed,
    times_matrix,
)
from judge_server.verifiers.units import END, Unit

MAX_TOKENS = 4000
"""The most tokens of an answer that is read as mathematics."""


_SET_OPERATIONS = {"\\cup": "union", "\\cap": "intersection", "\\setminus": "without"}
ELEMENTARY = frozenset(
    ["sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "arccot", "sinh", "cosh", "tanh", "exp"]
)
"""Functions that have a value for a number."""
FUNCTIONS = ELEMENTARY | frozenset(
    ["ln", "log", "lg", "max", "min", "gcd", "lcm", "det", "dim", "ker", "deg", "sgn", "floor", "ceil"]
)
_WRITTEN_FUNCTIONS = FUNCTIONS | {"sqrt", "abs"}
_SYMBOL_COMMANDS = frozenset(
    rf"\{name}" for name in [*GREEK, "infty", "emptyset", "ell", "hbar", "Re", "Im", "top", "bot"]
)
_GREEK_WORDS = frozenset(name[1:] for name in _SYMBOL_COMMANDS if len(name) > 3)
_ACCENTS = frozenset(
    rf"\{name}"
    for name in words_in("vec hat bar tilde overline overrightarrow dot ddot mathbb mathcal mathfrak mathscr")
)
_NO_FACTORS = frozenset(["no", "on", "am", "pm", "or", "is", "if", "to", "by", "of", "in", "at", "ad", "bc", "up"])
"""Words of two letters that are no product of two variables."""

_DELIMITED = {"\\lfloor": ("\\rfloor", "floor"), "\\lceil": ("\\rceil", "ceil"), "\\|": ("\\|", "norm")}
_OPENING = {"(": ")", "[": "]", "\\{": "\\}", "]": "["}
_DIFFERENTIAL = re.compile("d[rstuvxyz]")
_HEXADECIMAL = re.compile("[xX][0-9a-fA-F]+")
"""The rest of a number such as `0xff`."""


def read(tokens: Sequence[Token], *, glued_units: bool = False) -> Term | None:
    """Read an answer; None if a token of it has no place in the grammar.

    Args:
        tokens: of `judge_server.verifiers.notation.tokens_of`.
        glued_units: take a letter after digits for a unit or scale (`5m`, `5M`), not for a factor.
    """
    if len(tokens) > MAX_TOKENS:
        return None
    try:
        return _Parser(list(tokens), glued_units).answer()
    except NotRead:
        return None


class _Parser(Cursor):
    """A recursive descent over tokens. Every method consumes what it reads, or raises `NotRead`."""

    def __init__(self, tokens: list[Token], glued_units: bool) -> None:
        super().__init__(tokens, glued_units)
        self._bars = 0

    def answer(self) -> Term:
        """Read all tokens."""
        if sequence := sequence_term(self._tokens):
            return sequence
        term = self._over(self._list(("",)), ("",))
        if self._at != len(self._tokens):
            raise NotRead
        return term

    def _over(self, top: Term, closing: tuple[str, ...]) -> Term:
        r"""Read the rest of TeX's `{1 \over 2}` and `{n \choose k}`."""
        if self._accept("\\over"):
            return Term("divide", (top, self._list(closing)))
        if self._accept("\\choose"):
            return Term("call", (top, self._list(closing)), text="binom")
        return top

    def _joiner(self) -> str | None:
        """Consume what separates two items; None if nothing does."""
        found = None
        if self._peek().text in (",", ";") and self._peek() is not END:
            found = self._next().text
        word = self._peek()
        if word.kind == "word" and word.text in ("and", "or"):
            self._at += 1
            found = word.text
        elif word.text in ("\\vee", "\\wedge", "&"):
            self._at += 1
            found = "or" if word.text == "\\vee" else "and"
        return found

    def _list(self, closing: tuple[str, ...]) -> Term:
        """Read items up to a closing token, which stays."""
        items = [self._item(closing)]
        joiners: list[str] = []
        while (joiner := self._joiner()) is not None:
            joiners.append(joiner)
            items.append(self._item(closing))
        if not joiners:
            return items[0]
        outer = set(joiners) - {","} or {","}
        if len(outer) > 1:
            raise NotRead
        joiner = outer.pop()
        if joiner != "," and "," in joiners[joiners.index(joiner) :]:
            return self._groups(items, joiners, joiner)
        return Term("list", tuple(items), text="," if joiner == ";" else joiner)

    def _groups(self, items: list[Term], joiners: list[str], outer: str) -> Term:
        """Return a list of lists: `x = 3, y = 4 or x = 4, y = 3`."""
        groups: list[list[Term]] = [[items[0]]]
        for joiner, item in zip(joiners, items[1:], strict=True):
            if joiner == outer:
                groups.append([item])
            else:
                groups[-1].append(item)
        if len({len(group) for group in groups}) > 1:
            raise NotRead
        lists = [Term("list", tuple(group), text=",") for group in groups]
        return Term("list", tuple(lists), text="," if outer == ";" else outer)

    def _item(self, closing: tuple[str, ...]) -> Term:
        """Read a relation, or what stands on a side of one."""
        self._refuse_labels_and_names()
        parts: list[Term] = []
        signs: list[str] = []
        if (sign := self._relation()) is not None:
            signs.append(sign)
        elif (name := self._name_before_sign()) is not None:
            parts.append(name)
            signs.append(self._relation() or "")
        parts.append(self._side())
        while (sign := self._relation()) is not None:
            signs.append(sign)
            parts.append(self._side())
        if not signs:
            return parts[0]
        if len(parts) == 1 and signs[0] in ("=", "~") and len(signs) == 1:
            if signs[0] == "~" and parts[0].head == "symbol" and not is_constant(parts[0]):
                raise NotRead  # `\\sim p` denies p
            return parts[0]
        return Term("relation", tuple(parts), text=" ".join(signs))

    def _refuse_labels_and_names(self) -> None:
        """Refuse `(a) 2`, and names in letters such as `AB` or `H_2O`, whose order matters."""
        if self._peek().text == "(" and self._peek(2).text == ")":
            label, after = self._peek(1), self._peek(3)
            if (
                label.kind in ("word", "number")
                and len(label.text) < 4
                and (after.spaced or after.upright)
                and (after.kind in ("number", "word") or after.text in ("\\frac", "\\sqrt", "-", "(", CURRENCY_SIGN))
            ):
                raise NotRead
        if self._peek().kind != "word":
            return
        capitals, letters, at = 0, 0, self._at
        for token in self._tokens[at:]:
            if token.text in (",", ";", "and", "or"):
                break
            if token.kind == "word":
                if token.text in _WRITTEN_FUNCTIONS:
                    return
                capitals += sum(map(str.isupper, token.text))
                letters += len(token.text)
            elif (token.kind == "number" and token.spaced) or (
                token.kind != "number" and token.text not in ("'", "_", "{", "}")
            ):
                return
        if capitals > 1:
            raise NotRead

    def _name_before_sign(self) -> Term | None:
        """Read words before an equals sign, as in `Area = 25`; None if it is no such name."""
        ahead = 0
        while self._peek(ahead).kind == "word" and ahead < 8:
            ahead += 1
        words = self._tokens[self._at : self._at + ahead]
        if (
            not words
            or RELATIONS.get(self._peek(ahead).text) not in ("=", "~")
            or all(len(word.text) < 3 and not re.fullmatch("[a-z][A-Z]", word.text) for word in words)
        ):
            return None
        self._at += ahead
        return Term("symbol", text="name " + " ".join(word.text.casefold() for word in words))

    def _relation(self) -> str | None:
        token = self._peek()
        if token.text == "\\not":
            after = self._peek(1).text
            if after in ("=", "\\in"):
                self._at += 2
                return "!=" if after == "=" else "not in"
            raise NotRead
        if token.text in ("<", ">", "!", ":") and self._peek(1).text == "=" and not self._peek(1).spaced:
            self._at += 2
            return {"<": "<=", ">": ">=", "!": "!=", ":": "="}[token.text]
        if token.text == "=" and self._peek(1).text in ("=", "<", ">"):
            raise NotRead
        sign = RELATIONS.get(token.text)
        self._at += sign is not None
        return sign

    def _side(self) -> Term:
        """Read an expression with its unit, or sets that are joined."""
        self._deeper()
        term = self._quantity()
        while self._peek().text in _SET_OPERATIONS:
            operation = _SET_OPERATIONS[self._next().text]
            other = self._quantity()
            same = term.head == "set_operation" and term.text == operation and operation != "without"
            term = Term("set_operation", (*(term.parts if same else (term,)), other), text=operation)
        while self._peek().text == ":" and self._peek(1).text != "=":
            self._at += 1
            same = term.head == "sequence" and not term.text.startswith("base")
            parts = (*(term.parts if same else (term,)), self._quantity())
            term = Term("sequence", parts, text=" ".join(":" * (len(parts) - 1)))
        self._depth -= 1
        return term

    def _quantity(self) -> Term:
        signed = self._peek().text in ("-", "+")
        if (currency := self._currency_at(self._at + signed)) is not None:
            negative = self._peek().text == "-"
            self._at, unit = currency
            negative ^= self._accept("-")
            amount = self._product()
            if (short := self._short_scale()) is not None:
                amount = scaled(amount, short)
            words = self._unit()
            if words is not None:
                if words.dimensions[: len(unit.dimensions)] != unit.dimensions and words != unit:
                    raise NotRead
                unit = words
            unit = self._per(unit) or unit
            amount = Term("negate", (amount,)) if negative else amount
            return Term("quantity", (amount,), unit=unit)
        amount = self._sum()
        unit_after = self._unit() or self._per(Unit())
        if unit_after is None:
            return amount
        term = Term("quantity", (amount,), unit=unit_after)
        while (joined := self._with_smaller_part(term)) is not None:
            term = joined
        return term

    def _with_smaller_part(self, whole: Term) -> Term | None:
        """Consume a part in a smaller unit, as in `5 hours 30 minutes`; None if none follows."""
        start = self._at
        ahead = 1 if self._peek().text == "and" else 0
        amount, larger = whole.parts[0], whole.unit
        if amount.head != "number" or larger is None or self._peek(ahead).kind != "number":
            return None
        self._at += ahead
        part = number_term(self._next().text)
        smaller = self._unit()
        if smaller is None or smaller.dimensions != larger.dimensions or not 0 < smaller.size < larger.size:
            self._at = start
            return None
        value = amount.value * larger.size / smaller.size + part.value
        return Term("quantity", (number(value),), unit=replace(smaller, needed=True))

    def _sum(self) -> Term:
        """Read terms that are added or subtracted."""
        self._deeper()
        terms: list[Term] = []
        sign = "+"
        if self._peek().text in ("+", "-", "\\pm", "\\mp"):
            sign = self._next().text
        elif self._peek().kind == "word" and self._peek().text.casefold() in ("negative", "minus", "positive", "plus"):
            sign = "-" if self._next().text.casefold() in ("negative", "minus") else "+"
        terms.append(signed(sign, self._product()))
        while self._peek().text in ("+", "-", "\\pm", "\\mp"):
            sign = self._next().text
            if self._accept("-"):
                sign = {"+": "-", "-": "+"}.get(sign, "")
                if not sign:
                    raise NotRead
            terms.append(signed(sign, self._product()))
        self._depth -= 1
        return terms[0] if len(terms) == 1 else Term("add", tuple(terms))

    def _product(self) -> Term:
        """Read factors, with or without a sign between them."""
        factors = [self._scaled(self._power())]
        constant = is_constant(factors[0])
        while True:
            token = self._peek()
            if token.text in ("\\cdot", "\\times", "*"):
                self._at += 1
                is_vector = factors[-1].text.startswith("\\vec") or self._is_bold(self._at - 2)
                factor = self._signed_factor()
                if token.text == "\\times" and is_vector and factors[-1].head == "symbol":
                    factor = Term("call", (factors.pop(), factor), text="of the vector product")
                factors.append(factor)
            elif token.text == "/":
                if constant and len(self._peek(1).text) > 2 and self._unit_at(self._at + 1, glued=False) is not None:
                    break
                self._at += 1
                factors.append(Term("inverse", (self._signed_factor(),)))
            elif self._begins_factor(factors, constant):
                is_part = token.kind == "number" and factors[-1].head == "number"  # of a mixed number
                factor = self._simple_fraction() if is_part else self._power()
                is_mixed = len(factors) == 1 and token.text != "("  # `2(3/4)` is a product
                if is_mixed and (whole := mixed(factors[0], factor)) is not None:
                    factors = [self._scaled(whole)]
                else:
                    factors.append(factor)
            else:
                break
            constant = constant and is_constant(factors[-1])
        if len(factors) == 1:
            return factors[0]
        if is_matrix(factors[-1]) and not any(map(is_matrix, factors[:-1])):
            return times_matrix(factors)
        if len(factors) == 2 and factors[1].head == "inverse":
            return self._scaled(Term("divide", (factors[0], factors[1].parts[0])))
        return self._scaled(Term("multiply", tuple(factors)))

    def _is_bold(self, at: int) -> bool:
        token = self._tokens[at]
        return token.upright and token.kind == "word" and len(token.text) == 1

    def _simple_fraction(self) -> Term:
        top = number_term(self._next().text)
        self._expect("/")
        return Term("divide", (top, number_term(self._next().text)))

    def _signed_factor(self) -> Term:
        negative = self._accept("-")
        factor = self._scaled(self._power())
        return Term("negate", (factor,)) if negative else factor

    def _scaled(self, term: Term) -> Term:
        """Apply words that scale the number before them, as in `5 million` or `3 squared`."""
        while self._peek().kind == "word" and (term.head in ("number", "divide", "multiply", "scaled")):
            word = self._peek()
            folded = word.text.casefold()
            if folded in ("squared", "cubed") and term.head == "number":
                term = Term("power", (term, number(2 if folded == "squared" else 3)))
            elif (by := units.scale(word.text)) is not None and (
                word.spaced or word.upright or len(word.text) > 2 or not word.text.isascii() or folded in ("bn", "mn")
            ):
                term = scaled(term, by)
            elif (
                folded == "and"
                and term.head == "number"
                and (self._peek(1).text, self._peek(2).text) in (("a", "half"), ("1", "half"))
            ):
                self._at += 2
                term = number(term.value + Fraction(1, 2))
            elif (
                self._glued_units and word.text in units.SHORT_SCALES and not word.spaced and term.head == "number"
            ) or (
                word.text in ("k", "M", "B") and word.spaced | word.upright and term.head == "number" and self._ends(1)
            ):
                term = scaled(term, units.SHORT_SCALES[word.text])
            else:
                return term
            self._at += 1
        return term

    def _ends(self, ahead: int) -> bool:
        """Whether an item ends after `ahead` tokens."""
        token = self._peek(ahead)
        return token is END or token.text in (",", ";", ")", "]", "\\}", "and", "or", "-") or token.text in RELATIONS

    def _begins_factor(self, factors: Sequence[Term], constant: bool) -> bool:
        """Whether the next token begins a factor that is written without a sign."""
        token = self._peek()
        if token is END:
            return False
        if token.kind == "word":
            if token.text in ("and", "or", "mod", "if", "choose"):
                return False
            if token.text in ("a", "an") and constant and self._unit_at(self._at + 1, glued=False) is not None:
                return False
            if constant and self._unit_at(self._at, glued=not (token.spaced or token.upright)) is not None:
                return False
            short = not (token.spaced or token.upright) or len(token.text) < 3
            return short or token.text in _WRITTEN_FUNCTIONS | _GREEK_WORDS
        if token.kind == "number":
            if factors[-1].text == "factorial":
                return True
            whole = len(factors) == 1 and factors[0].head == "number"
            return whole and token.spaced and self._peek(1).text == "/" and self._peek(2).kind == "number"
        if token.kind == "command":
            if (
                token.text in ("\\frac", "\\Omega", "\\mu")
                and constant
                and self._unit_at(self._at, glued=False) is not None
            ):
                return False
            if token.text == "\\begin":
                return constant
            is_factor = token.text in _SYMBOL_COMMANDS or token.text in _ACCENTS or token.text[1:] in FUNCTIONS
            return is_factor or token.text in ("\\frac", "\\sqrt", "\\binom", "\\lfloor", "\\lceil", "\\angle")
        if token.text == "[":
            return not token.spaced and factors[-1].head == "symbol" and factors[-1].text != "\\infty"
        return token.text in ("(", "{") or (token.text == "|" and not self._bars)

    def _power(self) -> Term:
        """Read a factor with its powers, factorials and percent signs."""
        self._deeper()
        term = self._primary()
        while True:
            token = self._peek()
            if token.text in ("^", "*") and (token.text == "^" or self._peek(1).text == "*"):
                self._at += 1 if token.text == "^" else 2
                if self._peek().text == "'" or self._peek().text in ("\\prime",):
                    raise NotRead
                term = Term("power", (term, self._exponent()))
            elif token.text == "!" and self._peek(1).text not in ("!", "="):
                self._at += 1
                term = Term("call", (term,), text="factorial")
            elif token.text == "!":
                if self._peek(1).text == "!":
                    raise NotRead
                break
            else:
                break
        self._depth -= 1
        return term

    def _exponent(self) -> Term:
        if self._peek().text == "{":
            return self._braced()
        negative = self._accept("-")
        if not negative:
            self._accept("+")
        term = self._power()
        return Term("negate", (term,)) if negative else term

    def _braced(self) -> Term:
        self._deeper()
        self._expect("{")
        bars, self._bars = self._bars, 0
        term = self._over(self._list(("}",)), ("}",))
        self._bars = bars
        self._expect("}")
        self._depth -= 1
        return Term("set", term.parts) if term.head == "list" else term

    def _argument(self) -> Term:
        r"""Read an argument of a command: `{…}`, or one digit, letter or command."""
        if self._peek().text == "{":
            return self._braced()
        token = self._peek()
        if token.kind == "number" and token.text.isdigit() and len(token.text) > 1:
            self._tokens[self._at] = Token("number", token.text[1:])
            return number(int(token.text[0]))
        if token.kind == "word" and len(token.text) > 1 and not token.upright:
            self._tokens[self._at] = Token("word", token.text[1:])
            return Term("symbol", text=token.text[0])
        return self._primary()

    def _primary(self) -> Term:
        token = self._next()
        if token.kind == "number":
            term = number_term(token.text)
            after = self._peek()
            if token.text == "0" and not after.spaced and _HEXADECIMAL.fullmatch(after.text):
                raise NotRead
            if after.text == "_":
                return self._based(token)
            return term
        if token.kind == "word":
            return self._word(token)
        if token.kind == "command":
            self._deeper()
            term = self._command(token)
            self._depth -= 1
            return term
        if token.text == "(" and [self._peek(ahead).text for ahead in (1, 2)] == [")", "_"]:
            digits = self._next()
            self._at += 1
            if digits.kind != "number":
                raise NotRead
            return self._based(digits)
        if token.text in ("(", "["):
            return self._bracketed(token.text)
        if token.text == "]" and self._depth < 4:
            return self._bracketed(token.text)
        if token.text == "{":
            if self._accept("}"):
                return Term("symbol", text="\\emptyset")
            self._at -= 1
            return self._braced()
        if token.text == "|":
            self._bars += 1
            self._deeper()
            term = self._sum()
            self._depth -= 1
            self._bars -= 1
            self._expect("|")
            return Term("call", (term,), text="abs")
        raise NotRead

    def _based(self, digits: Token) -> Term:
        """Read digits to a base, as in `4210_5`: they are that and nothing else."""
        self._at += 1
        base = self._subscript()
        written = with_digits(base)
        return Term("sequence", (number_term(digits.text),), text="base " + written)

    def _subscript(self) -> str:
        """Read a subscript as it is written."""
        if self._peek().text != "{":
            return self._next().text
        self._at += 1
        depth = 1
        written: list[str] = []
        while True:
            token = self._next()
            depth += (token.text == "{") - (token.text == "}")
            if not depth:
                return " ".join(written)
            written.append(token.text)

    def _name(self, base: str) -> Term:
        """Read the subscript and primes of a name, and its arguments if it is a function's."""
        while True:
            if self._peek().text == "_" and self._peek() is not END:
                self._at += 1
                base += "_" + self._subscript()
            elif self._peek().text == "'":
                self._at += 1
                base += "'"
            elif self._peek().text == "^" and self._peek(1).text == "'":
                self._at += 2
                base += "'"
            elif self._peek().text == "^" and self._peek(1).text == "{" and self._peek(2).text == "'":
                self._at += 2
                while self._accept("'"):
                    base += "'"
                self._expect("}")
            else:
                break
        if (
            self._peek().text == "("
            and not self._peek().spaced
            and (base.rstrip("'") in ("f", "g", "h", "F", "G", "P") or "'" in base)
        ):
            self._at += 1
            arguments = self._bracketed("(")
            return Term("call", arguments.parts if arguments.head == "tuple" else (arguments,), text="of " + base)
        return Term("symbol", text=base)

    def _word(self, token: Token) -> Term:
        text = token.text
        if text in _WRITTEN_FUNCTIONS:
            if text == "sqrt":
                return Term("call", (self._function_argument(),), text="sqrt")
            return self._function(text)
        if text == "pi" or text in _GREEK_WORDS:
            return self._name("\\" + text)
        if text.casefold() in ("infinity", "infty", "inf", "oo"):
            return Term("symbol", text="\\infty")
        if len(text) == 1:
            return self._name(text)
        if token.upright or not text.isascii() or len(text) > 4:
            raise NotRead
        after = self._peek()
        alone = self._at == 1 and (after is END or after.kind == "word" or after.text in (",", ";"))
        if len(text) > 2 and (alone or token.spaced or (after.kind == "word" and after.spaced)):
            raise NotRead
        if len(text) == 2 and text[1:].islower() and text.casefold() in _NO_FACTORS:
            raise NotRead
        if after.kind == "number" and not after.spaced:
            raise NotRead
        if _DIFFERENTIAL.fullmatch(text):
            return self._name(text)
        letters, last = text[:-1], text[-1]
        self._at -= 1
        self._tokens[self._at] = Token("word", last)
        term = Term("symbol", text=letters[0])
        for letter in letters[1:]:
            term = Term("multiply", (term, Term("symbol", text=letter)))
        return Term("multiply", (term, self._power()))

    def _command(self, token: Token) -> Term:
        text = token.text
        if text in ("\\frac", "\\binom"):
            parts = self._argument(), self._argument()
            return Term("divide", parts) if text == "\\frac" else Term("call", parts, text="binom")
        if text == "\\sqrt":
            if self._accept("["):
                index = self._sum()
                self._expect("]")
                return Term("power", (self._argument(), Term("divide", (number(1), index))))
            if self._peek().text == "(":
                return Term("call", (self._primary(),), text="sqrt")
            return Term("call", (self._argument(),), text="sqrt")
        if text == "\\{":
            if self._accept("\\}"):
                return Term("symbol", text="\\emptyset")
            if (described := self._set_builder()) is not None:
                return described
            return self._bracketed(text)
        if text in _DELIMITED:
            closing, name = _DELIMITED[text]
            term = self._sum()
            self._expect(closing)
            return Term("call", (term,), text=name)
        if text == "\\langle":
            term = self._list(("\\rangle",))
            self._expect("\\rangle")
            return Term("tuple", term.parts if term.head == "list" else (term,), text="<>")
        if text[1:] in FUNCTIONS:
            return self._function(text[1:])
        if text in _SYMBOL_COMMANDS:
            return self._name(text)
        if text in _ACCENTS:
            written = self._subscript()
            return self._name(f"{text} {written}")
        if text == "\\angle" and self._peek().kind == "word":
            return self._name(f"\\angle {self._next().text}")
        if text == "\\begin":
            return self._matrix()
        raise NotRead

    def _set_builder(self) -> Term | None:
        r"""Read the rest of `\{x \in \mathbb{R} \mid x > 5\}` as `x > 5`; None if it is another set."""
        name, at = self._peek(), 1
        if name.kind != "word" or len(name.text) != 1:
            return None
        if [self._peek(ahead).text for ahead in range(1, 6)] == ["\\in", "\\mathbb", "{", "R", "}"]:
            at = 6
        if self._peek(at).text not in ("|", ":"):
            return None
        self._at += at + 1
        condition = self._list(("\\}",))
        self._expect("\\}")
        parts = condition.parts if condition.head == "list" else (condition,)
        if any(part.head != "relation" or Term("symbol", text=name.text) not in part.parts for part in parts):
            raise NotRead
        return condition

    def _bracketed(self, opening: str) -> Term:
        """Read what a bracket that is already consumed opens: a group, tuple, set or interval."""
        self._deeper()
        bars, self._bars = self._bars, 0
        inside = self._list(tuple(_OPENING.values()))
        self._bars = bars
        closing = self._next().text
        self._depth -= 1
        parts = inside.parts if inside.head == "list" else (inside,)
        pair = opening + closing
        if pair == "\\{\\}":
            return Term("set", parts)
        if opening == "\\{" or closing not in (")", "]", "["):
            raise NotRead
        if len(parts) == 1:
            if pair == "()" or (pair == "[]" and inside.head in ("add", "multiply", "divide")):
                return inside
            if inside.head == "matrix" and closing != "[":
                return inside
        elif inside.text != ",":
            raise NotRead
        elif pair == "()" or (pair == "][" and len(parts) == 2):  # `]0, 1[` is ISO 80000's way to write `(0, 1)`
            return Term("tuple", parts)
        elif len(parts) == 2:
            return Term("interval", parts, text=("[" if opening == "[" else "(") + ("]" if closing == "]" else ")"))
        if pair != "[]":
            raise NotRead
        return Term("tuple", parts, text="[]")

    def _function(self, name: str) -> Term:
        power: Term | None = None
        base: Term | None = None
        while self._peek().text in ("^", "_"):
            if self._next().text == "^":
                power = self._exponent()
            else:
                base = self._argument()
        if base is not None and name != "log":
            raise NotRead
        argument = self._function_argument()
        if power is not None and name in ("sin", "cos", "tan") and is_minus_one(power):
            name, power = "arc" + name, None
        arguments = argument.parts if argument.head in ("tuple", "list", "set") else (argument,)
        if name == "log" and base is not None:
            term = Term("divide", (Term("call", (argument,), text="ln"), Term("call", (base,), text="ln")))
        else:
            term = Term("call", arguments, text=name)
        return term if power is None else Term("power", (term, power))

    def _function_argument(self) -> Term:
        """Read the argument of a function: in brackets, or the factors that follow without a sign."""
        if self._peek().text in ("(", "[", "{", "|"):
            return self._primary()  # a power after the brackets is that of the function's value
        negative = self._accept("-")
        term = self._power()
        factors = [term]
        while not self._peek().spaced or self._peek().kind == "command":
            token = self._peek()
            is_other = token.text in ("(", "{") or token.text[1:] in FUNCTIONS or token.text in FUNCTIONS
            if is_other or not self._begins_factor(factors, is_constant(factors[-1])):
                break
            factors.append(self._power())
        term = Term("multiply", tuple(factors)) if len(factors) > 1 else term
        if self._peek().text == "°":
            self._at += 1
            term = Term("multiply", (term, Term("divide", (Term("symbol", text="\\pi"), number(180)))))
        return Term("negate", (term,)) if negative else term

    def _matrix(self) -> Term:
        self._expect("{")
        kind = self._next().text
        self._expect("}")
        if kind == "cases":
            return self._cases()
        if kind not in ("pmatrix", "bmatrix", "vmatrix", "matrix", "Bmatrix", "array", "smallmatrix"):
            raise NotRead
        if kind == "array":
            self._subscript()
        self._deeper()
        rows: list[Term] = []
        while True:
            cells = [self._side()]
            while self._accept("&"):
                cells.append(self._side())
            rows.append(Term("row", tuple(cells)))
            if not self._accept("\\\\"):
                break
            if self._peek().text == "\\end":
                break
        for text in ("\\end", "{", kind, "}"):
            self._expect(text)
        self._depth -= 1
        return Term("matrix", tuple(rows), text="determinant" if kind == "vmatrix" else "")

    def _cases(self) -> Term:
        r"""Read the rows of `cases` up to its end: a system of equations, or values with their conditions."""
        self._deeper()
        rows: list[Term] = []
        while self._peek().text != "\\end":
            cells = [self._item(("&",))]
            self._accept(",", ";")
            if self._accept("&"):
                self._accept("if", "for", "when", "where")
                is_rest = self._accept("otherwise", "else")
                cells.append(Term("symbol", text="name otherwise") if is_rest else self._item(("\\\\",)))
                self._accept(",", ";", ".")
            rows.append(Term("row", tuple(cells)))
            if not self._accept("\\\\"):
                break
        for text in ("\\end", "{", "cases", "}"):
            self._expect(text)
        self._depth -= 1
        if all(len(row.parts) == 1 and row.parts[0].head == "relation" for row in rows):
            rows = [row.parts[0] for row in rows]
        return Term("list", tuple(rows), text=",")
