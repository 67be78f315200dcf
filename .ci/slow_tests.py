"""Print the test files whose slow tests CI runs today: a third of them by rotation, and those whose sources changed.

Each file runs every third day. What changed is what the last commit changed against its first parent. The list goes to
standard output, the reasons to standard error. `--changed PATH` only says whether a path covers a change.
"""

import subprocess
import sys
import zlib
from datetime import UTC, date, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
PARTS = 3
OPERATIONS = ("judge_server/src/judge_server/operations/", "services/src/adjudge_services/worker")
REMOTE = (
    "judge_server/src/judge_server/remote/",
    "judge_server/src/judge_server/api/judge_process.py",
    "judge_server/src/judge_server/scheduling/pools.py",
)
LEDGER = ("judge_server/src/judge_server/ledger/", "rubric_store/src/rubric_store/ledger/")
DATABASE = ("rubric_store/src/rubric_store/database.py", "rubric_store/src/rubric_store/migrations/")
PACKAGING = ("/pyproject.toml", "constraints.txt", "docker/")

COVERS = {
    "tests/benchmarks/": ("benchmarks/",),
    "tests/deploy/test_image_contents.py": PACKAGING,
    "tests/judge_server/faults/test_database_outage.py": (*LEDGER, *DATABASE),
    "tests/judge_server/faults/test_engine_endpoints.py": (*REMOTE, "judge_server/src/judge_server/scheduling/"),
    "tests/judge_server/faults/test_redis.py": (
        "judge_server/src/judge_server/scoring/cache.py",
        "judge_server/src/judge_server/resilient_redis.py",
    ),
    "tests/judge_server/ledger/": LEDGER,
    "tests/judge_server/engines/pool/": (*REMOTE, "judge_server/src/judge_server/engines/"),
    "tests/judge_server/engines/openai/test_sglang.py": ("judge_server/src/judge_server/engines/openai/",),
    "tests/judge_server/verifiers/": ("judge_server/src/judge_server/verifiers/",),
    "tests/services/faults/test_backup.py": ("services/src/adjudge_services/", *DATABASE, *LEDGER),
    "tests/services/faults/test_ledger.py": LEDGER,
    "tests/services/faults/test_lost_packets.py": (*REMOTE, *DATABASE, "trainer_client/src/trainer_client/client/"),
    "tests/services/faults/test_upgrade_under_load.py": DATABASE,
    "tests/services/api/test_decision_clients.py": ("judge_server/src/judge_server/api/decisions.py",),
    "tests/services/api/test_generated_clients.py": (
        "judge_server/src/judge_server/api/",
        "trainer_client/src/trainer_client/wire/",
    ),
    "tests/services/api/test_guarded_http.py": ("services/src/adjudge_services/http_server",),
    "tests/services/api/test_schemathesis.py": (
        "judge_server/src/judge_server/api/",
        "trainer_client/src/trainer_client/wire/",
    ),
    "tests/services/judges/": REMOTE,
    "tests/services/judges/test_engines_dead_or_late.py": ("judge_server/src/judge_server/engines/",),
    "tests/services/operations/": OPERATIONS,
    "tests/services/test_end_to_end.py": ("judge_server/src/judge_server/engines/llamacpp/",),
    "tests/trainer_client/test_installs_alone.py": PACKAGING,
    "tests/trainer_client/trl/": ("trainer_client/src/trainer_client/trl/", "trainer_client/src/trainer_client/rows/"),
    "tests/vllm/": (
        "tests/vllm/",
        "judge_server/src/judge_server/engines/vllm/",
        "judge_server/src/judge_server/ports/engine.py",
        "judge_server/src/judge_server/models/convert.py",
        "requirements-vllm",
    ),
}
"""By the beginning of a test file's path, parts of the paths that it covers; a file always covers itself."""


def find_slow_files() -> list[str]:
    """Return the test files with a slow test."""
    command = ["git", "grep", "-lE", r"\bmark\.slow\b", "--", "tests/**/test_*.py", ":!tests/deploy/containers"]
    return sorted(subprocess.check_output(command, cwd=ROOT, text=True).split())


def read_changes() -> list[str]:
    """Return the paths that the last commit changed; none in a clone that does not have its parent."""
    command = ["git", "diff", "--name-only", "HEAD^", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()


def rotate(files: list[str], day: date) -> list[str]:
    """Return the files that the rotation has on this day; their order by hash keeps those of one folder apart."""
    shuffled = sorted(files, key=lambda file: zlib.crc32(file.encode()))
    return shuffled[day.toordinal() % PARTS :: PARTS]


def covers_a_change(file: str, changes: list[str]) -> bool:
    """Return whether a changed path is the file's own, or one that it covers."""
    covered = [part for begin, parts in COVERS.items() if file.startswith(begin) for part in parts]
    return any(change == file or any(part in change for part in covered) for change in changes)


def check_table() -> None:
    """Exit with an error if `COVERS` names what no file's path has, as after a move."""
    paths = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    missing = {begin for begin in COVERS if not any(path.startswith(begin) for path in paths)}
    missing |= {part for parts in COVERS.values() for part in parts if not any(part in path for path in paths)}
    if missing:
        sys.exit(f".ci/slow_tests.py: no file's path has {', '.join(sorted(missing))}; name the new place in COVERS")


def main() -> None:
    """Print the files of today; with `--changed PATH`, say by the exit status whether that path covers a change."""
    check_table()
    if sys.argv[1:2] == ["--changed"]:
        sys.exit(0 if covers_a_change(sys.argv[2], read_changes()) else 1)
    day, changes, files = datetime.now(UTC).date(), read_changes(), find_slow_files()
    chosen = dict.fromkeys(rotate(files, day), "rotation")
    chosen |= {file: "change" for file in files if covers_a_change(file, changes)}
    print(f"slow tests of {day}: {len(chosen)} of {len(files)} files; make test-all runs all", file=sys.stderr)
    for file in sorted(chosen):
        print(f"  {file} ({chosen[file]})", file=sys.stderr)
    print(*sorted(chosen))


if __name__ == "__main__":
    main()
