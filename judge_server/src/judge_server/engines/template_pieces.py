"""A chat template rendered around marks, taken apart at them. What a template means is not known here."""


def split_at_marks(text: str, *marks: str) -> list[str] | None:
    """What stands before, between and after the marks; None unless each is there once, in this order."""
    if any(text.count(mark) != 1 for mark in marks):
        return None
    pieces = []
    for mark in marks:
        piece, found, text = text.partition(mark)
        if not found:
            return None
        pieces.append(piece)
    return [*pieces, text]
