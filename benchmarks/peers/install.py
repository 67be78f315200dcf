"""`python -m benchmarks.peers.install`: create a virtual environment for each peer under `.venv-peers`.

Each peer has its own environment, since their requirements on the openai package conflict. A peer that cannot be
installed is reported with pip's reason; the others can still be measured.
"""

import subprocess
import venv
from pathlib import Path

from rich.console import Console

REQUIREMENTS = Path("benchmarks/peers/requirements")
ENVIRONMENTS = Path(".venv-peers")


def python(peer: str) -> str:
    """Return the path of a peer's Python, whether or not it exists."""
    return str(ENVIRONMENTS / peer / "bin/python")


def install(peer: str, wanted: str) -> str | None:
    """Install the requirements `wanted` in a peer's environment; return the reason if that fails, else None."""
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
    """Install all peers; failures are reported but do not change the exit status."""
    for file in sorted(REQUIREMENTS.glob("*.txt")):
        reason = install(file.stem, file.read_text(encoding="utf-8"))
        if reason is not None:
            Console(soft_wrap=True).print(f"[bold yellow]SKIPPED[/] {file.stem}: {reason}", highlight=False)


if __name__ == "__main__":
    main()
