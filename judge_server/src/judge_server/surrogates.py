"""Halves of surrogate pairs, which JSON can spell and no encoding carries. Models and engines write them."""


def replace_lone_surrogates(text: str) -> str:
    """The text with its surrogate pairs joined; a half by itself becomes U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
