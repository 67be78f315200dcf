"""A parser of the Dockerfile: its stages, with the instructions of each, in order."""

import re
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from tests.deploy.tools import ROOT

FILE = ROOT / "docker/Dockerfile"


@dataclass
class Stage:
    """`FROM base AS name`, and the instructions after it: pairs of instruction and argument."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def of(self, instruction: str) -> list[str]:
        """Return the arguments of one kind of instruction."""
        return [argument for name, argument in self.instructions if name == instruction]


def arguments() -> dict[str, str]:
    """Return the images that stages start from, by the names of the global ARGs."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return dict(line.removeprefix("ARG ").split("=", 1) for line in lines if line.startswith("ARG "))


def stages() -> dict[str, Stage]:
    """Return every stage by its name."""
    text = re.sub(r"\\\n\s*", "", FILE.read_text(encoding="utf-8"))
    found: dict[str, Stage] = {}
    for line in text.splitlines():
        word, _, argument = line.partition(" ")
        if word == "FROM":
            base, _, name = argument.partition(" AS ")
            stage = found[name] = Stage(name, base)
        elif word and not word.startswith("#") and word != "ARG":
            stage.instructions.append((word, argument))
    return found


def lineage(name: str) -> list[Stage]:
    """Return a stage and the stages that it is built on, the nearest first."""
    known = stages()
    chain = [known[name]]
    while chain[-1].base in known:
        chain.append(known[chain[-1].base])
    return chain


def last(name: str, instruction: str) -> str | None:
    """Return the argument in effect for an image: its own, or that of the nearest stage below it."""
    for stage in lineage(name):
        if given := stage.of(instruction):
            return given[-1]
    return None


def ignored(path: Path) -> bool:
    """Whether `.dockerignore` excludes a file from the build: the last matching pattern decides."""
    relative = path.relative_to(ROOT)
    verdict = False
    for line in (FILE.parent / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!").removeprefix("**/")
        names = [part.as_posix() for part in (relative, *relative.parents)] + list(relative.parts)
        if pattern == "*" or any(fnmatch(name, pattern) for name in names):
            verdict = not line.startswith("!")
    return verdict
