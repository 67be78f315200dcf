"""Find the statements of a migration that could break older code.

Only changes known to be compatible pass: new tables, optional columns, indexes that are not unique, a table that is
moved away and created anew, and any change to a table that the migration itself created.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, event

from rubric_store import migrations

_BOOKKEEPING = {"alembic_version", "schema_generation"}
_HARMLESS = re.compile(r"(?:SELECT|PRAGMA|SET LOCAL|BEGIN|SHOW|COMMENT ON)\b", re.IGNORECASE)
_NAME = r'(?:"?public"?\.)?"?(?P<table>\w+)"?'
_CREATED = re.compile(rf"CREATE (?:TEMPORARY |TEMP )?TABLE (?:IF NOT EXISTS )?{_NAME}", re.IGNORECASE)
_INDEX = re.compile(rf'CREATE (?P<unique>UNIQUE )?INDEX (?:IF NOT EXISTS )?"?\w+"? ON {_NAME}', re.IGNORECASE)
_COLUMN = re.compile(rf"ALTER TABLE {_NAME} ADD COLUMN (?P<column>.*)", re.IGNORECASE | re.DOTALL)
_OTHER = re.compile(rf"(?:INSERT INTO|UPDATE|DELETE FROM|DROP TABLE(?: IF EXISTS)?|ALTER TABLE) {_NAME}", re.IGNORECASE)
_MOVED = re.compile(rf'ALTER TABLE {_NAME} RENAME TO "?(?P<to>\w+)"?', re.IGNORECASE)
_STRICT = re.compile(r"\b(?:UNIQUE|REFERENCES|CHECK|PRIMARY KEY|GENERATED|IDENTITY)\b", re.IGNORECASE)


@contextmanager
def recorded() -> Iterator[list[str]]:
    """Every statement that any engine sends during the block."""
    sent: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(" ".join(statement.split()))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def find_breaking_statements(statements: list[str]) -> list[str]:
    """The statements of a migration that could break older code."""
    own: set[str] = set(_BOOKKEEPING)
    found: list[str] = []
    moved: dict[str, str] = {}
    for statement in statements:
        if created := _CREATED.match(statement):
            own.add(created["table"])
            moved.pop(created["table"], None)
        elif move := _MOVED.match(statement):
            own.add(move["to"])
            if move["table"] not in own:
                moved[move["table"]] = statement
        elif not (_HARMLESS.match(statement) or _is_compatible(statement, own)):
            found.append(statement)
    return found + list(moved.values())


def _is_compatible(statement: str, own: set[str]) -> bool:
    if index := _INDEX.match(statement):
        return index["table"] in own or not index["unique"]
    if added := _COLUMN.match(statement):
        column = added["column"].upper()
        required = "NOT NULL" in column and "DEFAULT" not in column
        return added["table"] in own or not (required or _STRICT.search(column))
    other = _OTHER.match(statement)
    return other is not None and other["table"] in own


def undeclared(url: str, after: str) -> dict[str, list[str]]:
    """The breaking statements of each revision after the given one that declares no `works_from`.

    The empty database is migrated to the newest revision.
    """
    migrations.upgrade(url, after)
    known = migrations.revisions()
    places = {step.revision: number for number, step in enumerate(known)}
    found = {}
    for before, step in zip(known[places[after] :], known[places[after] + 1 :], strict=False):
        with recorded() as sent:
            migrations.upgrade(url, step.revision)
        if step.works_from == before.works_from and (wrong := find_breaking_statements(sent)):
            found[step.revision] = wrong
    return found
