"""`python -m tests.docs PAGE…`: run the code of pages, as the tests do, and say what is wrong with each."""

import sys
import tempfile
from pathlib import Path

from tests.docs.code_blocks import read, syntax_problem
from tests.docs.running import PageError, prepared, run_page


def main() -> int:
    """Run each page of the arguments; return 1 if one has a problem."""
    failed = False
    for argument in sys.argv[1:]:
        page = Path(argument).resolve()
        blocks = read(page)
        problems = [
            f"{argument}, line {block.line}: {problem}" for block in blocks if (problem := syntax_problem(block))
        ]
        if not problems and any(block.is_run for block in blocks):
            with tempfile.TemporaryDirectory(prefix="adjudge-page-") as folder:
                try:
                    with prepared(Path(folder), blocks) as environment:
                        run_page(argument, blocks, Path(folder), environment)
                except PageError as error:
                    problems.append(str(error))
        print(*(problems or [f"{argument}: all of it runs"]), sep="\n")
        failed = failed or bool(problems)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
