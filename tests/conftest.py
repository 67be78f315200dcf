"""What every test may use: a real PostgreSQL and a real Redis."""

pytest_plugins = ["tests.fixtures.postgres", "tests.fixtures.redis"]
