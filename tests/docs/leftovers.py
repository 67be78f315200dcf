"""Find what mechanical merges and renames leave behind: repetitions in tables and prose, and names of nothing.

`python -m tests.docs.leftovers`, in the root folder, prints each and fails; `make lint` runs it. The file `FOREIGN`
has names that are not ours.
"""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from tests.docs.pages import ROOT, blocks, code_spans, name, prose

FOREIGN = Path(__file__).with_name("foreign_names.txt")
"""The names and options of other software that pages may use."""

_ITS_OWN = ("tests/docs/leftovers.py", "tests/docs/test_leftovers.py", "tests/docs/foreign_names.txt")

_RECORDS = ("CHANGELOG.md", "docs/decisions/", "docs/reference/")
"""Pages that name what is gone, or that are made from the sources."""

_MIN_SENTENCE = 30
_SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`\[(])")
_PHRASE_TWICE = re.compile(r"\b(\w+(?:[^\w|]{1,3}\w+){2,9}[.:]?) \1")
_PART = re.compile(r"\n\s*\n|\n *(?:[-*#>]+|\d{1,2}\.) ")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)  # such as why a block is not run
_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
_FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|md|toml|json|yaml))`")
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w.-]+")
_IDENTIFIER = re.compile(r"(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*|[A-Z][a-z]\w*[A-Z]\w*|[a-z]\w*_\w+")
_FILE_SUFFIX = re.compile(r"\.(?:py|md|json|jsonl|yaml|yml|toml|txt|csv|parquet|gguf|db|sh|html|svg|jinja)$")


def repeated_elements(source: str) -> Iterator[str]:
    """The elements that a list of a module, or one that a loop goes through, has twice."""
    tree = ast.parse(source)
    tables = [node.value for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    tables += [node.iter for node in ast.walk(tree) if isinstance(node, ast.For | ast.comprehension)]
    for table in tables:
        if isinstance(table, ast.Call) and table.args:  # such as frozenset((…))
            table = table.args[0]
        if isinstance(table, ast.Tuple | ast.List | ast.Set) and len(table.elts) > 3:
            for element in _twice(map(ast.unparse, table.elts)):
                if not re.fullmatch(r"-?[\d.]+|None|True|False", element):
                    yield f"twice in a table: {element}"


def repeated_prose(page: str) -> Iterator[str]:
    """The sentences that a page has twice, the words that follow themselves, and rows and files of a table."""
    page = _COMMENT.sub("", page)
    tables = [table.splitlines()[2:] for table in _TABLE.findall(page)]
    parts = [" ".join(part.split()) for part in _PART.split(f"\n{_TABLE.sub(chr(10), page)}")]
    sentences = [one for part in parts for one in _SENTENCE.split(part) if len(one) >= _MIN_SENTENCE]
    for repeated in (_twice(sentences), *map(_twice, tables)):
        yield from (f"said twice: {one}" for one in repeated)
    for part in [*parts, *(row for rows in tables for row in rows)]:
        yield from (f"said twice in a row: {found[1]}" for found in _PHRASE_TWICE.finditer(part))
    for cell in (cell for rows in tables for row in rows for cell in row.split("|")):
        yield from (f"named twice in a cell: {file}" for file in _twice(_FILE.findall(cell)))


def _twice(texts: Iterable[str]) -> list[str]:
    return [text for text, number in Counter(texts).items() if number > 1]


def unknown_names(spans: Iterable[str], words: frozenset[str], commands: Mapping[str, Any]) -> Iterator[str]:
    """The names in code spans that are in no source: identifiers, commands, and options of commands.

    Args:
        spans: the texts between backticks.
        words: the words of the sources, options with their dashes included.
        commands: the groups and commands of `adjudge` by name; a command is the set of its options.
    """
    everywhere = words | _options(commands)
    for span in spans:
        if span.startswith("adjudge "):
            yield from _unknown_command(span, commands)
        elif not span.startswith(("pip ", "helm ", "kubectl ", "docker ")):
            yield from (f"no such option: {option}" for option in _OPTION.findall(span) if option not in everywhere)
        bare = span.removesuffix("()")
        is_name = _IDENTIFIER.fullmatch(bare) and not _FILE_SUFFIX.search(bare)
        if is_name and (missing := [part for part in bare.split(".") if not _is_word(part, words)]):
            yield f"no such name: {span} ({', '.join(missing)})"


def _is_word(name: str, words: frozenset[str]) -> bool:
    """Whether sources have a name, or the part to which they append: `pass_at_K`, and `_total` of a counter."""
    before, _, last = name.rpartition("_")
    is_part = f"{before}_" in words if re.fullmatch(r"[A-Z]|\d+", last) else last == "total" and before in words
    return name in words or is_part


def _unknown_command(span: str, commands: Mapping[str, Any]) -> Iterator[str]:
    here: Any = commands
    for word in span.split()[1:]:
        if isinstance(here, Mapping) and re.fullmatch(r"[a-z][a-z-]+", word):
            if word not in here:
                yield f"no such command: {span}"
                return
            here = here[word]
    options = here if isinstance(here, frozenset) else _options(here)
    yield from (f"no such option: {option} in {span}" for option in _OPTION.findall(span) if option not in options)


def _options(commands: Mapping[str, Any] | frozenset[str]) -> frozenset[str]:
    """The options of a command, or of all commands of a group."""
    if isinstance(commands, frozenset):
        return commands
    return frozenset[str]().union(*map(_options, commands.values()))


def adjudge_commands() -> dict[str, Any]:
    """The commands of `adjudge`, as `unknown_names` takes them."""
    from adjudge_services.cli.main import app

    def read(command: Any) -> Any:
        if hasattr(command, "commands"):
            context = typer.Context(command)
            below = {word: read(command.get_command(context, word)) for word in command.list_commands(context)}
            return {"": options(command), **below}
        return options(command)

    def options(command: Any) -> frozenset[str]:
        declared = command.get_params(typer.Context(command))
        return frozenset({"--help"}).union(*((*one.opts, *one.secondary_opts) for one in declared))

    found: dict[str, Any] = read(typer.main.get_command(app))
    return found


def python_words(source: str) -> Iterator[str]:
    """The words of a module's code and texts, without its comments and docstrings."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Constant(value=str(text)):
                yield from re.findall(r"--[\w-]+|\w+", text)
            case ast.Name(id=word) | ast.arg(arg=word) | ast.Attribute(attr=word) | ast.keyword(arg=str(word)):
                yield word
            case ast.FunctionDef(name=word) | ast.AsyncFunctionDef(name=word) | ast.ClassDef(name=word):
                yield word
            case ast.alias(name=word, asname=other):
                yield from (*word.split("."), *([other] if other else []))
            case ast.ImportFrom(module=str(word)):
                yield from word.split(".")
            case ast.Expr(value=ast.Constant(value=str()) as docstring):
                docstring.value = None


def source_words() -> frozenset[str]:
    """The words of every file of the repository but its pages, options with their dashes included."""
    words: set[str] = set()
    for path in _tracked():
        if path.suffix == ".py" and name(path) not in _ITS_OWN:
            words.update(python_words(path.read_text(encoding="utf-8")))
        elif path.suffix not in (".md", ".gz", ".png", ".parquet") and name(path) not in _ITS_OWN:
            words.update(re.findall(r"--[\w-]+|\w+", path.read_text(encoding="utf-8", errors="ignore")))
    return frozenset(words)


def _code(page: Path) -> Iterator[str]:
    """The code spans of a page, and the commands of its blocks."""
    yield from code_spans(page)
    for block in blocks(page, "console"):
        yield from re.findall(r"(?m)(?:^|&& )(adjudge [^|&#\n]+)", block.replace("\\\n", " "))


def foreign_names() -> frozenset[str]:
    """The names in the file `FOREIGN`."""
    lines = FOREIGN.read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if line[0] != "#" for word in line.partition(": ")[2].split())


def _tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [path for one in listed.decode().split("\0") if one and (path := ROOT / one).is_file()]


def leftovers() -> Iterator[str]:
    """Everything in this repository that is to be mended, each with its file."""
    words, foreign, commands = source_words(), foreign_names(), adjudge_commands()
    spans: set[str] = set()
    for path in _tracked():
        where = name(path)
        found: list[str] = []
        if path.suffix == ".py" and "/src/" in where:
            found = list(repeated_elements(path.read_text(encoding="utf-8")))
        elif path.suffix == ".md" and not where.startswith(_RECORDS):
            found = [*repeated_prose(prose(path)), *unknown_names(_code(path), words | foreign, commands)]
            spans.update(code_spans(path))
        yield from (f"{where}: {problem}" for problem in dict.fromkeys(found))
    needless = [word for word in sorted(foreign) if word in words or not any(word in span for span in spans)]
    yield from (f"{name(FOREIGN)}: in a source, or in no page: {word}" for word in needless)


if __name__ == "__main__":
    problems = list(leftovers())
    print(*problems, sep="\n", end="\n" * bool(problems))
    sys.exit(bool(problems))
