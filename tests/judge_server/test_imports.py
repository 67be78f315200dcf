"""What is imported together with the server."""

import subprocess
import sys


def test_the_server_imports_the_stores_rows_and_no_database() -> None:
    code = "import sys, judge_server.api.app, judge_server.operations.runner; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    imported = set(run.stdout.split())
    assert {"rubric_store.ledger.rows", "rubric_store.operations.rows"} <= imported
    assert not {"sqlalchemy", "alembic", "psycopg", "aiosqlite"} & imported
