"""A pull in a separate process, for tests that kill it: `python -m tests.judge_server.models.pull_process FOLDER`."""

import sys
from pathlib import Path

from judge_server.models.downloads import fetch
from tests.judge_server.models.fake_hub import tiny_model

if __name__ == "__main__":
    print(fetch("tiny", cache_dir=Path(sys.argv[1]), catalogue=(tiny_model(),)))
