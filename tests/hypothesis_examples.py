"""How many examples a property tries that says a number of its own: that many, and fewer under the profile `quick`."""

from hypothesis import settings

_WITHOUT_A_PROFILE = 100


def examples(number: int) -> int:
    """So many in make test; in make check a part of them, as it tries a part of every other property's."""
    return max(1, number * settings.default.max_examples // _WITHOUT_A_PROFILE)
