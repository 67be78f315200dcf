"""The reward modes, from their classes in `trainer_client.modes`."""

from tests.docs.reference import markdown
from tests.docs.reference.markdown import paragraphs
from trainer_client.modes import MODES, Mode


def table_row(name: str, mode: Mode) -> tuple[str, str, str, str]:
    """A mode's name, default protocol, other protocols, and whether its reward is linear in the scores."""
    first, *others = mode.protocols or ("no judge",)
    linear = "no" if mode.not_linear else "yes"
    return f"[`{name}`](#{name})", first, ", ".join(others), linear


def table() -> str:
    """A table of all modes."""
    head = ("mode", "protocol by default", "other protocols", "linear in the scores")
    return markdown.table(head, [table_row(name, mode) for name, mode in MODES.items()])


def modes_page() -> str:
    """A section for each mode."""
    lines = []
    for name, mode in MODES.items():
        lines += [f"## {name}", ""]
        for part in paragraphs(type(mode).__doc__):
            lines += [part, ""]
        lines += [f"- **Protocols:** {_protocols(mode)}", f"- **Soft rewards (`reward.use`):** {_soft(name, mode)}"]
        lines += [f"- **Rubric dropout:** {'refused, since it ' + mode.not_linear if mode.not_linear else 'yes'}."]
        lines += [f"- **`reward.weighting: contrast`:** {'yes' if mode.weighs else 'refused'}.", ""]
    return "\n".join(lines)


def _protocols(mode: Mode) -> str:
    if not mode.protocols:
        return "none. A program decides, and no judge is asked."
    first, *others = mode.protocols
    return f"`{first}` by default{''.join(f', `{other}`' for other in others)}."


def _soft(name: str, mode: Mode) -> str:
    if name == "ranking":
        return "a comparison counts as the share p of a win."
    if mode.not_linear:
        return f"refused, since it {mode.not_linear}."
    given = [protocol for protocol in mode.protocols if protocol in ("binary", "stepwise")]
    if not given:
        return "the score of a grade is an expectation already."
    return f"yes, under {' and '.join(f'`{one}`' for one in given)}."
