"""What every test may use: a real PostgreSQL and a real Redis. No test depends on how fast the machine is."""

from hypothesis import settings

pytest_plugins = ["tests.fixtures.postgres", "tests.fixtures.redis"]

settings.register_profile("adjudge", deadline=None)
settings.load_profile("adjudge")
