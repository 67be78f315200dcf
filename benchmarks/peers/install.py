"""`python -m benchmarks.peers.install`: an environment for each peer under `.venv-peers`, where it is not there yet.

One for each, since they want versions of the openai package that exclude each other. What does not install is named
with pip's reason, and leaves the others to be measured.
"""

import subprocess
import venv
from pathlib import Path

from rich.console import Console

REQUIREMENTS = Path("benchmarks/peers/requirements")
ENVIRONMENTS = Path(".venv-peers")


def python(peer: str) -> str:
    """The Python that has a peer, there or not."""
    return str(ENVIRONMENTS / peer / "bin/python")


def install(peer: str, wanted: str) -> str | None:
    """Bring a peer's environment to what is wanted; why it cannot be, or None."""
    folder = ENVIRONMENTS / peer
    stamp = folder / "installed.txt"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return None
    Console(soft_wrap=True).print(f"installing {peer} into {folder} (a minute or two the first time)", highlight=False)
    stamp.unlink(missing_ok=True)
    venv.create(folder, with_pip=True, clear=True)
    command = [python(peer), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted.split()]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        errors = [line for line in run.stderr.splitlines() if line.startswith("ERROR")]
        return (errors or run.stderr.splitlines() or ["pip gave no reason"])[-1]
    stamp.write_text(wanted, encoding="utf-8")
    return None


def main() -> None:
    """Install all; ends well also where one cannot be."""
    for file in sorted(REQUIREMENTS.glob("*.txt")):
        reason = install(file.stem, file.read_text(encoding="utf-8"))
        if reason is not None:
            Console(soft_wrap=True).print(f"[bold yellow]SKIPPED[/] {file.stem}: {reason}", highlight=False)


if __name__ == "__main__":
    main()
