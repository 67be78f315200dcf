r"""Write chemical formulas in one way: `H_2O`, `H₂O`, `\ce{H2O}` and `H2O` are the same substance.

Only what is a formula by its form is read: element symbols with numbers, charges and arrows, the name of a hybrid
orbital, or an electron configuration. Case and order count, so `CO` is not `Co`, and `HO2` not `H2O`.
"""

import re

from judge_server.verifiers.notation import tokens_of

MAX_CHARACTERS = 300
"""The most characters of a chemical formula."""

_ELEMENT = (
    "A[cglmrstu]|B[aehikr]?|C[adeflmnorsu]?|D[bsy]|E[rsu]|F[elmr]?|G[ade]|H[efgos]?|I[nr]?|Kr?|L[airuv]|M[cdgnot]"
    "|N[abdehiop]?|O[gs]?|P[abdmortu]?|R[abefghnu]|S[bcegimnr]?|T[abehilms]|U|V|W|Xe|Yb?|Z[nr]"
)
_GROUP = rf"(?:(?:{_ELEMENT})\d{{0,4}})"
_SPECIES = rf"(?:{_GROUP}|[(\[]{_GROUP}{{1,20}}+[)\]]\d{{0,4}}){{1,40}}+(?:\^\d?[+-])?(?:\((?:s|l|g|aq)\))?"
_SIDE = rf"\d{{0,3}}{_SPECIES}(?:\+\d{{0,3}}{_SPECIES}){{0,8}}+"
_FORMULA = re.compile(rf"{_SIDE}(?:(?:->|=){_SIDE})?")
_ORBITALS = re.compile(r"d?2?sp[23]?d?2?|(?:\[[A-Z][a-z]\])?(?:[1-7][spdf]\d{1,2})+")
_SIGNS = {
    "\\to": "->",
    "\\longrightarrow": "->",
    "\\cdot": ".",
    "_": "",
    "{": "",
    "}": "",
    "\\ce": "",
    "\\{": "",
    "\\}": "",
}


def chemical_formula(answer: str) -> str | None:
    """Return a chemical formula in one way of writing; None if an answer is none, or has no number to be written."""
    if len(answer) > MAX_CHARACTERS:
        return None
    written = "".join([_SIGNS.get(token.text, token.text) for token in tokens_of(answer)])
    written = re.sub(r"\^([+-])(\d)(?!\d)", r"^\2\1", written)
    written = re.sub(r"(?<!\^\d)(?<=[A-Za-z\d)\]])([+-])\Z", r"^\1", written)
    plain = written.replace("^", "")
    if _ORBITALS.fullmatch(plain):
        return plain
    return written if re.search(r"[A-Za-z)\]]\d|\^|->", written) and _FORMULA.fullmatch(written) else None
