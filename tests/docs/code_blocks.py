"""The code blocks of a documentation page, in order, with the HTML comments that say how they are run.

| comment on a line of its own | what it says |
| --- | --- |
| `<!-- run first: COMMAND -->` | a command that is run and not shown |
| `<!-- not run: REASON -->` | the next block is only parsed, and its commands and options are checked |
| `<!-- file: NAME -->` | the next block is written to this file |
| `<!-- exit status: N -->` | the next block ends with this status |
| `<!-- not output -->` | the next `text` block is not the output of the block before it |
| `<!-- needs: trl -->` | the page needs torch and TRL |
"""

import ast
import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, get_args

import typer

from tests.services.command_tree import commands

LANGUAGES = {"bash", "python", "text", "json", "jsonl", "yaml", "toml", "diff", "ini", "csv", "html", "sql", "http"}
"""The languages of blocks on tutorials and how-to pages. No others, or a block such as `console` would not be run."""

_UsageError: Any = typer.BadParameter.__bases__[0]
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+|~~~+)(?P<language>[\w-]*)")
_COMMENT = re.compile(r"^ *<!-- (?P<key>run first|not run|file|exit status|not output)(?:: (?P<value>.*))? -->$")
_HEREDOC = re.compile(r"(<<-?\s*['\"]?(\w+)['\"]?[^\n]*\n).*?^\t*\2$", re.MULTILINE | re.DOTALL)
_SHELL_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)


@dataclass
class Block:
    """A code block.

    Attributes:
        line: the line of the page at which its code begins.
        says: the comments before it, such as {"not run": "needs a GPU"}.
        expected: the text block that follows it, which is its output; None if there is none.
    """

    language: str
    code: str
    line: int
    says: dict[str, str] = field(default_factory=dict)
    expected: str | None = None

    @property
    def is_run(self) -> bool:
        """Whether the block is run, or written into a file."""
        return "file" in self.says or (self.language in ("bash", "python") and "not run" not in self.says)


def code_blocks(text: str) -> list[Block]:
    """Return the blocks of a page. A `text` block is the output of the block before it in the same section."""
    found: list[Block] = []
    says: dict[str, str] = {}
    output_of: Block | None = None
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if fence := _FENCE.match(line):
            code = "\n".join(_until(lines, fence["fence"], len(fence["indent"])))
            block = Block(fence["language"], code + "\n" if code else "", number + 1, says)
            says = {}
            if block.language == "text" and output_of is not None and not {"not output", "file"} & block.says.keys():
                output_of.expected = block.code
                output_of = None
                continue
            output_of = block if block.is_run else None
            found.append(block)
        elif comment := _COMMENT.match(line):
            if comment["key"] == "run first":
                found.append(Block("bash", comment["value"] + "\n", number))
            else:
                says[comment["key"]] = comment["value"] or ""
        elif line.startswith("#"):
            output_of = None
    return found


def _until(lines: Iterator[tuple[int, str]], fence: str, indent: int) -> Iterator[str]:
    for _, line in lines:
        if line.strip() == fence:
            return
        yield line[min(indent, len(line) - len(line.lstrip(" "))) :]


def syntax_problem(block: Block) -> str:
    """Return what is wrong with a block's syntax or with the options of its `adjudge` commands; empty if nothing is."""
    try:
        match block.language:
            case "python":
                ast.parse(block.code)
            case "json":
                json.loads(block.code)
            case "bash":
                checked = subprocess.run(["bash", "-n"], input=block.code, capture_output=True, text=True, check=False)
                return checked.stderr or next(filter(None, map(command_problem, adjudge_commands(block.code))), "")
    except (SyntaxError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def adjudge_commands(code: str) -> Iterator[list[str]]:
    """The arguments of each `adjudge` command of a shell script, also behind `docker compose exec api` and the like."""
    code = _SHELL_COMMENT.sub("", _HEREDOC.sub(r"\1", code.replace("\\\n", " ")))
    for inner in re.findall(r"\$\(([^()]*)\)", code):
        yield from adjudge_commands(inner)
    for words in _simple_commands(code):
        names = [at for at, word in enumerate(words) if word == "adjudge" or word.endswith("/bin/adjudge")]
        for at in names:
            rest = words[at + 1 :]
            is_first = all(re.match(r"\w+=", word) for word in words[:at])
            if is_first or (rest and any(path[0] == rest[0] for path in _known())):
                yield rest
                break


def _simple_commands(code: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(code, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t\r", "", True
    words: list[str] = []
    for word in lexer:
        if not set(word) <= set("();<>|&\n"):
            words.append(word)
        elif set(word) & set("<>"):
            if words and words[-1].isdigit():
                words.pop()
            next(lexer, None)
        else:
            yield words
            words = []
    yield words


@cache
def _known() -> Mapping[tuple[str, ...], Any]:
    return commands()


def command_problem(arguments: list[str]) -> str:
    """Return what is wrong with the arguments of an `adjudge` command: an unknown command, option or choice."""
    known = _known()
    path: tuple[str, ...] = ()
    while arguments and any(one[: len(path) + 1] == (*path, arguments[0]) for one in known):
        path, arguments = (*path, arguments[0]), arguments[1:]
    if path not in known or (arguments and not path):
        complete = arguments[0] in ("--help", "-h", "--version") if arguments else not path
        return "" if complete else f"no such command: adjudge {' '.join((*path, *arguments))}"
    command: Any = known[path]
    context = typer.Context(command, info_name=" ".join(("adjudge", *path)))
    try:
        values, left_over, _ = command.make_parser(context).parse_args(list(arguments))
    except _UsageError as error:
        return f"adjudge {' '.join((*path, *arguments))}: {error}"
    if left_over:
        return f"too many arguments: {' '.join(left_over)}"
    for parameter in command.get_params(context):
        given = values.get(parameter.name)
        choices = _choices(parameter.type_descriptor.annotation)
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, str) and choices and not re.search(r"[$<]", value) and value not in choices:
                return f"{parameter.opts[0]} {value}: write one of {', '.join(choices)}"
    return ""


def _choices(annotation: Any) -> list[str]:
    """The strings of the literals in a type."""
    if isinstance(annotation, str):
        return [annotation]
    return [choice for part in get_args(annotation) for choice in _choices(part)]


def read(page: Path) -> list[Block]:
    """Return the blocks of a page on the disk."""
    return code_blocks(page.read_text(encoding="utf-8"))
