"""Files that a command makes from the sources: written, or compared with `--check`."""

import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]


def write_or_check(files: Mapping[Path, str], source: str, command: str) -> None:
    """Write the files whose text is another one; with `--check`, exit instead, with their names and what to run.

    Args:
        files: by path, the text that each should have.
        source: what the text follows from, for the message.
        command: the module that writes the files, for the message.
    """
    stale = {path: text for path, text in files.items() if not path.exists() or path.read_text("utf-8") != text}
    if "--check" not in sys.argv:
        for path, text in stale.items():
            path.write_text(text, encoding="utf-8")
    elif stale:
        names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
        sys.exit(f"{names}: not what {source}; run: python -m {command}")
