"""Text compared as text: what counts as the same, and how an answer's dress (LaTeX, Markdown) is taken off."""

import re
from collections.abc import Iterable

from trainer_client.final_answer import boxed_answer

_WRAPPED = re.compile(
    r"\$\$(?P<a>[^$]*)\$\$|\$(?P<b>[^$]*)\$|\\\((?P<c>.*)\\\)|\\\[(?P<d>.*)\\\]|\*\*(?P<e>[^*]*)\*\*"
    r"|`(?P<f>[^`]*)`",
    re.DOTALL,
)
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|textrm|textsf|mathrm|mathbf|mbox)\s*\{(?P<inside>[^{}]*)\}")


def same(a: str, b: str, *, case_sensitive: bool) -> bool:
    """Whether two texts agree but for space around them and runs of space inside."""
    return _folded(" ".join(a.split()), case_sensitive) == _folded(" ".join(b.split()), case_sensitive)


def contains(text: str, all_of: Iterable[str], any_of: Iterable[str], *, case_sensitive: bool) -> bool:
    """Whether every text of `all_of` stands in `text` and, unless it is empty, one of `any_of`."""
    searched = _folded(text, case_sensitive)
    wanted = [_folded(needle, case_sensitive) for needle in any_of]
    if not all(_folded(needle, case_sensitive) in searched for needle in all_of):
        return False
    return not wanted or any(needle in searched for needle in wanted)


def undressed(answer: str) -> str:
    r"""Give an answer without `\boxed{…}`, `$…$`, `\(…\)`, `\[…\]`, `**…**` or backticks around it, or a full stop."""
    while True:
        stripped = answer.strip()
        if stripped.endswith(".") and not stripped.endswith(".."):
            stripped = stripped[:-1].rstrip()
        if wrapped := _WRAPPED.fullmatch(stripped):
            stripped = next(inside for inside in wrapped.groups() if inside is not None)
        if stripped.startswith("\\boxed"):
            stripped = boxed_answer(stripped) or stripped
        if stripped == answer:
            return answer
        answer = stripped


def without_text_commands(answer: str) -> str:
    r"""Give an answer with `\text{…}`, `\mathrm{…}` and their like replaced by what is in them."""
    return _TEXT_COMMAND.sub(lambda command: f" {command['inside']} ", answer)


def _folded(text: str, case_sensitive: bool) -> str:
    return text if case_sensitive else text.casefold()
