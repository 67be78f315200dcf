"""The number of examples for properties that set their own: fewer under the profile `quick`."""

from hypothesis import settings

_WITHOUT_A_PROFILE = 100


def examples(number: int) -> int:
    """Scale a number of examples by the active profile: all in make test, a part of them in make check."""
    return max(1, number * settings.default.max_examples // _WITHOUT_A_PROFILE)
