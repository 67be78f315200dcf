"""The words that may follow a number: units with their sizes, things that are counted, and words that scale it.

A word that is in none of these tables is no unit, so `5 hundredths` or `5 PM` is never taken for 5. Units are read in
the tokens of an answer: `km/h`, `m s^{-2}`, `square feet`, `eggs per day`, `degrees Celsius`. Each function returns a
unit and where it ends; what may follow a unit is decided by the reader of the answer.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from judge_server.verifiers.notation import Token, words_in

Dimensions = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """What a number counts.

    Attributes:
        dimensions: base units with their exponents, sorted; empty for counted things alone.
        size: one such unit in base units.
        things: the counted things, in the singular: `apple`.
        needed: whether the number alone is something else, as for per mille.
    """

    dimensions: Dimensions = ()
    size: Fraction = Fraction(1)
    things: tuple[str, ...] = ()
    needed: bool = False

    def times(self, other: "Unit", power: int = 1) -> "Unit":
        """Return the product with a power of another unit."""
        exponents = dict(self.dimensions)
        for base, exponent in other.dimensions:
            exponents[base] = exponents.get(base, 0) + exponent * power
        kept = tuple(sorted((base, exponent) for base, exponent in exponents.items() if exponent))
        size = self.size * other.size**power
        return Unit(kept, size, self.things + other.things, self.needed or other.needed)


def _base(name: str) -> Unit:
    return Unit(((name, 1),))


PERCENT = _base("percent")
PER_MILLE = Unit((("percent", 1),), Fraction(1, 10), needed=True)
BASIS_POINT = Unit((("percent", 1),), Fraction(1, 100), needed=True)
DEGREE = _base("degree")


def _table(rows: str, bases: dict[str, Dimensions]) -> dict[str, Unit]:
    """Read rows of `base: word word = size`, separated by semicolons."""
    table = {}
    for row in filter(None, map(str.strip, rows.split(";"))):
        base, _, rest = row.partition(":")
        words, _, size = rest.partition("=")
        for word in words.split():
            table[word] = Unit(bases.get(base, ((base, 1),)), Fraction(size.strip()))
    return table


_BASES: dict[str, Dimensions] = {
    "L": (("m", 3),),
    "N": (("kg", 1), ("m", 1), ("s", -2)),
    "J": (("kg", 1), ("m", 2), ("s", -2)),
    "W": (("kg", 1), ("m", 2), ("s", -3)),
    "Pa": (("kg", 1), ("m", -1), ("s", -2)),
    "Hz": (("s", -1),),
    "m2": (("m", 2),),
    "m/s": (("m", 1), ("s", -1)),
    "C": (("A", 1), ("s", 1)),
    "V": (("A", -1), ("kg", 1), ("m", 2), ("s", -3)),
    "ohm": (("A", -2), ("kg", 1), ("m", 2), ("s", -3)),
}
_EXACT = _table(  # as written, with the case that matters
    """
    m: m = 1; m: km Km = 1000; m: cm = 1/100; m: mm = 1/1000; m: um = 1/1000000; m: nm = 1/1000000000;
    m: Å = 1/10000000000; m: dm = 1/10; m: ft = 3048/10000; m: in = 254/10000; m: yd yds = 9144/10000;
    m: mi = 1609344/1000;
    kg: kg = 1; kg: g gm gms = 1/1000; kg: mg = 1/1000000; kg: ug = 1/1000000000;
    kg: lb lbs = 45359237/100000000; kg: oz = 45359237/1600000000; s: s sec secs = 1; s: ms = 1/1000;
    s: us = 1/1000000; s: ns = 1/1000000000; s: min mins = 60; s: h hr hrs = 3600; L: L l = 1/1000;
    L: mL ml cc = 1/1000000; L: dL dl = 1/10000; L: cL cl = 1/100000; N: N = 1; N: kN = 1000; J: J = 1;
    J: kJ = 1000; J: MJ = 1000000; J: eV = 1602176634/10000000000000000000000000000; J: kWh = 3600000;
    J: Wh = 3600; J: cal = 4184/1000; J: kcal Cal = 4184; W: W = 1; W: kW = 1000; W: MW = 1000000;
    W: mW = 1/1000; Pa: Pa = 1; Pa: kPa = 1000; Pa: MPa = 1000000; Pa: hPa = 100; Pa: atm = 101325;
    Pa: bar = 100000; mmHg: mmHg = 1; Hz: Hz hz = 1; Hz: kHz = 1000; Hz: MHz = 1000000; Hz: GHz = 1000000000;
    m/s: mph = 1609344/3600000; m/s: kph kmph kmh = 1000/3600; m/s: mps = 1; m/s: fps = 3048/10000; A: A = 1;
    A: mA = 1/1000; V: V = 1; V: mV = 1/1000; V: kV = 1000; ohm: Ω ohm ohms = 1; C: C = 1; K: K = 1;
    mol: mol mols = 1; mol: mmol = 1/1000; kmol: kmol = 1; cd: cd = 1; T: Tesla tesla = 1; F: farad farads = 1;
    Wb: Wb = 1; lm: lm = 1; rad: rad rads = 1; sr: sr = 1; rpm: rpm = 1; dB: dB = 1; u: amu = 1;
    m2: ha = 10000; bit: bit bits = 1; bit: byte bytes = 8; bit: kB KB = 8000; bit: MB = 8000000;
    bit: GB = 8000000000; bit: TB = 8000000000000; USD: USD = 1; EUR: EUR = 1; GBP: GBP = 1; JPY: JPY = 1;
    CNY: CNY RMB = 1; INR: INR Rs Rs. rs = 1; CAD: CAD = 1; AUD: AUD = 1; CHF: CHF = 1; BRL: BRL = 1;
    RUB: RUB = 1; KRW: KRW = 1; MXN: MXN = 1
    """,
    _BASES,
)
_WORDS = _table(  # any case, in the singular
    """
    m: meter metre = 1; m: kilometer kilometre = 1000; m: centimeter centimetre = 1/100;
    m: millimeter millimetre = 1/1000; m: micrometer micrometre micron = 1/1000000;
    m: nanometer nanometre = 1/1000000000; m: decimeter decimetre = 1/10; m: foot feet = 3048/10000;
    m: angstrom ångström = 1/10000000000; m: inch = 254/10000; m: yard = 9144/10000; m: mile = 1609344/1000;
    lightyear: lightyear = 1;
    kg: kilogram kilo = 1; kg: gram = 1/1000; kg: milligram = 1/1000000; kg: pound = 45359237/100000000;
    kg: ounce = 45359237/1600000000; kg: tonne = 1000; ton: ton = 1; stone: stone = 1; s: second = 1;
    s: minute = 60; s: hour = 3600; s: day = 86400; s: week = 604800; month: month = 1; month: year yr = 12;
    month: decade = 120; month: century = 1200; s: millisecond = 1/1000; s: microsecond = 1/1000000;
    s: nanosecond = 1/1000000000; night: night = 1; L: liter litre = 1/1000;
    L: milliliter millilitre = 1/1000000; gallon: gallon gal = 1; gallon: quart = 1/4; gallon: pint = 1/8;
    gallon: cup = 1/16; tablespoon: tablespoon tbsp = 1; tablespoon: teaspoon tsp = 1/3; N: newton = 1;
    J: joule = 1; J: kilojoule = 1000; J: calorie = 4184/1000; J: kilocalorie = 4184;
    J: electronvolt = 1602176634/10000000000000000000000000000; W: watt = 1; W: kilowatt = 1000;
    W: megawatt = 1000000; Pa: pascal = 1; Pa: kilopascal = 1000; Hz: hertz = 1; Hz: kilohertz = 1000;
    A: ampere amp = 1; V: volt = 1; C: coulomb = 1; K: kelvin = 1; mol: mole = 1; degree: degree deg = 1;
    rad: radian = 1; m2: hectare = 10000; m2: acre = 40468564224/10000000; knot: knot = 1; unit: unit = 1;
    USD: dollar buck usd = 1; USD: cent penny pennies = 1/100; USD: nickel = 1/20; USD: dime = 1/10;
    EUR: euro eur = 1; GBP: gbp = 1; JPY: yen = 1; CNY: yuan = 1; INR: rupee rs = 1; RUB: ruble rouble = 1;
    KRW: won = 1; MXN: peso = 1; BRL: reais = 1; CHF: franc = 1;
    CNY: 元 人民币 = 1; JPY: 円 日元 = 1; KRW: 원 = 1; m: 米 = 1; m: 厘米 = 1/100; m: 千米 公里 = 1000;
    kg: 千克 公斤 = 1; kg: 克 = 1/1000; s: 秒 = 1; s: 分钟 = 60; s: 小时 = 3600; s: 天 = 86400
    """,
    _BASES,
)
_WORDS |= {"bp": BASIS_POINT, "bps": BASIS_POINT}
CURRENCIES = {"\x01": _EXACT["USD"], "€": _EXACT["EUR"], "£": _EXACT["GBP"], "¥": _EXACT["JPY"], "₹": _EXACT["INR"]}
CURRENCIES |= {"₽": _EXACT["RUB"], "₩": _EXACT["KRW"]}
CURRENCIES |= {"₺": _base("TRY"), "₴": _base("UAH"), "₫": _base("VND"), "฿": _base("THB"), "₪": _base("ILS")}
"""Signs of currencies."""

_THINGS = frozenset(
    words_in(
        """
    adult album animal ant apple apricot arrangement arrow atom baby bag bagel baguette ball balloon banana barrel
    basket bat bead bean bear bed bee bicycle bike bill bird biscuit block boat book bottle bouquet bowl box boy
    bracelet branch brick brownie bug building bulb bun burger bus bush butterfly button cage cake calf call camel
    can candle candy car card carrot case cat cell chair chapter cheesecake cherry chicken child chocolate choice
    class client clip clown coach coat code coin color colour column combination comic computer cone configuration
    container cookie cow crate crayon croissant cube cucumber customer dancer desk diagonal digit dish doctor dog
    doll donut door dot doughnut download dress drink duck duckling edge egg element elephant employee envelope
    error ewe exam exercise face factor family fan farm farmer fence file finger fish flag floor flower flyer folder
    fox friend frog fruit function game gift girl glass goal goat goldfish grape graph group guest guitar gumball
    guy hat head hen herb hole home horse hotdog house insect instruction integer item jar jellybean job jug key kid
    kitten kiwi ladder lamb lamp lap leaf leg lego lemon lesson letter light lily lime line lion list loaf lollipop
    lolly lot machine magazine man mango map marble mark match meal medal melon member men message molecule monkey
    mouse movie muffin mug mushroom nail necklace needle neuron newspaper note notebook nurse nut object officer
    omelet onion option orange order ostrich outcome outfit owl package packet page painting pan pancake panda paper
    parent park parrot part partridge passenger path patient pattern pea peach peanut pear pen pencil penguin people
    pepper permutation person pet petal phone photo photograph picture pie piece pig pigeon pill pin pineapple pizza
    plane planet plant plate player plum point pole pool post poster pot potato present prize problem program
    project pumpkin puppy puzzle question rabbit racer rat ribbon ride ring road robot rock roll room root rose row
    rule runner salad sandwich sausage scarf school scoop seashell seat section seed serving set sheep sheet shelf
    shell ship shirt shoe shop side sister skirt slice snack snail snake sock soldier solution song spider spoon
    square star state statue step stick sticker stitch story strawberry string student subset suit sunflower swan
    sweater sweet table tadpole task teacher team term test ticket tie tile time tire toe tomato tool toothpick toy
    track trail train treat tree triangle trip truck tulip turkey turtle type vase vegetable vehicle vertex video
    visitor vote voter wagon walnut watermelon way whale wheel win window wire woman women word worker worm zebra
        """
    )
)
_PLURALS = dict(
    pair.split("/")
    for pair in words_in(
        "children/child men/man women/woman people/person feet/foot inches/inch leaves/leaf loaves/loaf shelves/shelf "
        "scarves/scarf calves/calf vertices/vertex mice/mouse centuries/century pennies/penny lbs/lb"
    )
)
_NOT_GLUED = frozenset(["nm", "ns", "us", "ms", "mi", "mA", "mW", "pm", "dm", "in", "um"])

SCALES = {
    word: Fraction(size)
    for size, words in {
        "1/1000000000": "billionth",
        "1/1000000": "millionth",
        "1/1000": "thousandth",
        "1/100": "hundredth",
        "1/10": "tenth",
        "1/9": "ninth",
        "1/8": "eighth",
        "1/7": "seventh",
        "1/6": "sixth",
        "1/5": "fifth",
        "1/4": "quarter fourth",
        "1/3": "third",
        "1/2": "half",
        "12": "dozen",
        "1e2": "hundred",
        "1e3": "thousand",
        "1e4": "万 萬",
        "1e5": "lakh lac",
        "1e6": "million mn mio",
        "1e7": "crore",
        "1e8": "亿 億",
        "1e9": "billion bn",
        "1e12": "trillion tn",
        "1e15": "quadrillion",
    }.items()
    for word in words.split()
}
"""Words that multiply the number before them, in the singular."""

_SHORT = {"k": "thousand", "K": "thousand", "M": "million", "B": "billion", "T": "trillion"}
SHORT_SCALES = {letter: SCALES[word] for letter, word in _SHORT.items()}
"""Letters that multiply an amount of money, or the number that they follow without a space."""


def singular(word: str) -> str:
    """Return the singular of an English noun, as far as these tables need it."""
    folded = word.casefold()
    if folded in _PLURALS:
        return _PLURALS[folded]
    for ending, instead in (("ies", "y"), ("xes", "x"), ("ches", "ch"), ("shes", "sh"), ("sses", "ss"), ("oes", "o")):
        if folded.endswith(ending) and len(folded) > len(ending) + 1:
            changed = folded[: -len(ending)] + instead
            if changed in _THINGS or changed in _WORDS or changed in SCALES:
                return changed
    if folded == "halves":
        return "half"
    return folded[:-1] if folded.endswith("s") and not folded.endswith("ss") and len(folded) > 3 else folded


def scale(word: str) -> Fraction | None:
    """Return what a word multiplies the number before it by; None if it is no such word."""
    return SCALES.get(word.casefold()) or (SCALES.get(singular(word)) if len(word) > 3 else None)


def unit_of(word: str, *, glued: bool) -> Unit | None:
    """Return what a word counts; None if it is in no table.

    Args:
        word: one run of letters.
        glued: whether it follows the digits without a space, where `5m` may be a product.
    """
    exact = _EXACT.get(word)
    if exact is not None:
        unsure = glued and (len(word) == 1 or word in _NOT_GLUED)
        return Unit(exact.dimensions, exact.size, needed=True) if unsure else exact
    one = singular(word)
    known = _WORDS.get(word.casefold()) or _WORDS.get(one)
    if known is not None:
        return known
    return Unit(things=(one,)) if one in _THINGS else None


def may_follow(word: str, following: str) -> bool:
    """Whether two units may stand side by side, as in `N m` or `chicken eggs`; an amount of money follows none."""
    after = unit_of(following, glued=False)
    if after is None or any(base.isupper() and len(base) == 3 for base, _ in after.dimensions):
        return after is None
    return (word in _EXACT) == (following in _EXACT)


END = Token("end", "")
"""What follows the last token."""


def read_unit_fraction(tokens: Sequence[Token], at: int) -> tuple[Unit | None, int]:
    r"""Read `\frac{km}{h}`."""
    found: list[Unit] = []
    at += 1
    for _ in range(2):
        if at >= len(tokens) or tokens[at].text != "{":
            return None, at
        unit, at = read_unit(tokens, at + 1, glued=False, unsure_allowed=False)
        if unit is None or at >= len(tokens) or tokens[at].text != "}":
            return None, at
        found.append(unit)
        at += 1
    return found[0].times(found[1], -1), at


def read_unit(
    tokens: Sequence[Token], at: int, *, glued: bool, unsure_allowed: bool, nested: bool = False
) -> tuple[Unit | None, int]:
    """Read a product and quotient of units, as in `km/h`, `J/(mol·K)` or `eggs per day`; brackets do not nest."""
    unit: Unit | None = None
    power = 1
    for _ in range(6):
        if power < 0 and not nested and tokens[at : at + 1] and tokens[at].text == "(":
            factor, after = read_unit(tokens, at + 1, glued=False, unsure_allowed=False, nested=True)
            if after >= len(tokens) or tokens[after].text != ")":
                return None, at
            after += 1
        else:
            factor, after = _read_unit_factor(tokens, at, glued=glued and unit is None, unsure_allowed=unsure_allowed)
        if factor is None:
            return (unit, at) if power == 1 and unit is not None and not _joins(tokens, at - 1) else (None, at)
        unit = Unit().times(factor, power) if unit is None else unit.times(factor, power)
        if power < 0 and factor.things:
            unit = replace(
                unit, things=(*unit.things[: -len(factor.things)], *("per " + thing for thing in factor.things))
            )
        at = after
        token = tokens[at] if at < len(tokens) else END
        following = tokens[at + 1] if at + 1 < len(tokens) else END
        power = 1
        if token.text in ("/", "per", "a", "an", "each", "every") and (
            token.text == "/" or token.spaced | token.upright
        ):
            power, at = -1, at + 1
        elif (token.text in ("\\cdot", "*", "\\times") and following.kind == "word") or (
            token.text == "of" and following.kind == "word"
        ):
            at += 1
        elif token.kind != "word" or not may_follow(tokens[at - 1].text, token.text):
            return unit, at
    return unit, at


def _joins(tokens: Sequence[Token], at: int) -> bool:
    return tokens[at].text in ("/", "per", "a", "an", "each", "every", "\\cdot", "*", "\\times", "of")


_PHRASES = {
    **dict.fromkeys(["basis point", "basis points"], BASIS_POINT),
    **dict.fromkeys(["percent", "pct", "percentage", "per cent"], PERCENT),
    **dict.fromkeys(["per mille", "per mil"], PER_MILLE),
    **dict.fromkeys(["percent point", "percent points", "pct point", "pct points"], _base("percentage point")),
    **dict.fromkeys(["percentage point", "percentage points"], _base("percentage point")),
    **dict.fromkeys(["celsius", "degrees celsius"], _base("°C")),
    **dict.fromkeys(["fahrenheit", "degrees fahrenheit"], _base("°F")),
    **dict.fromkeys(["nautical mile", "nautical miles"], _base("nautical")),
    **dict.fromkeys(["light year", "light years"], _base("light")),
}
"""Units of one or two words whose parts are no units of their own, in lower case."""


def _read_unit_factor(
    tokens: Sequence[Token], at: int, *, glued: bool, unsure_allowed: bool
) -> tuple[Unit | None, int]:
    def word(index: int) -> str:
        return tokens[index].text if index < len(tokens) and tokens[index].kind == "word" else ""

    if at < len(tokens) and tokens[at].text == "°":
        is_scale = word(at + 1) in ("C", "F")
        return (_base("°" + word(at + 1)), at + 2) if is_scale else (DEGREE, at + 1)
    if at < len(tokens) and tokens[at].text in CURRENCIES:
        return CURRENCIES[tokens[at].text], at + 1
    phrase = (word(at).casefold(), word(at + 1).casefold())
    if phrase[0] in ("degree", "degrees", "deg") and word(at + 1) in ("C", "F"):
        return _base("°" + word(at + 1)), at + 2
    for words in (" ".join(phrase), phrase[0]):
        if words in _PHRASES:
            return _PHRASES[words], at + len(words.split())
    ohm = (["k", "\\Omega"], 2, 1000) if word(at) == "k" else (["\\Omega"], 1, 1)
    if [token.text for token in tokens[at : at + ohm[1]]] == ohm[0]:
        return replace(_EXACT["ohm"], size=Fraction(ohm[2])), at + ohm[1]
    if (
        at < len(tokens)
        and tokens[at].text == "\\mu"
        and word(at + 1)
        and (not tokens[at + 1].spaced or at + 2 == len(tokens))
    ):
        micro = unit_of("u" + word(at + 1), glued=False)
        return (None, at) if micro is None else _with_exponent(micro, tokens, at + 2)
    exponent = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}.get(phrase[0], 0)
    if exponent:
        skip = 2 if phrase[0] in ("sq", "cu") and at + 1 < len(tokens) and tokens[at + 1].text == "." else 1
        measured = unit_of(word(at + skip), glued=False)
        if measured is not None and measured.dimensions:
            return Unit().times(measured, exponent), at + skip + 1
        if phrase[0] != "square":
            return None, at
    found = unit_of(word(at), glued=glued) if word(at) else None
    if found is None or (found.needed and glued and not unsure_allowed and found not in (BASIS_POINT,)):
        return None, at
    return _with_exponent(found, tokens, at + 1)


def _with_exponent(found: Unit, tokens: Sequence[Token], at: int) -> tuple[Unit | None, int]:
    """Apply an exponent that is written after a unit."""
    rest = [token.text for token in tokens[at : at + 5]]
    if rest[:1] in (["squared"], ["cubed"]):
        return Unit().times(found, 2 if rest[0] == "squared" else 3), at + 1
    if rest[:1] != ["^"]:
        return found, at
    digits = rest[1:2]
    length = 2
    if digits == ["{"]:
        digits, length = (
            ([rest[2]], 4) if rest[3:4] == ["}"] else (["-" + rest[3]], 5) if rest[2:3] == ["-"] else ([""], 0)
        )
    elif digits == ["-"]:
        digits, length = ["-" + "".join(rest[2:3])], 3
    if digits and re.fullmatch(r"-?[1-4]", digits[0], re.ASCII):
        return Unit(needed=found.needed).times(found, int(digits[0])), at + length
    return None, at
