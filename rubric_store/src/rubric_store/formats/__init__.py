"""The formats rubrics are published in, each read and written. None knows a database.

`read_document` and `parse_rubric` turn text into a rubric, `write_rubric` a rubric into text and what was lost, and
`read_file` whole files, of one rubric or of one a line.
"""

from rubric_store.formats.documents import FormatError, FormatProblem, RubricDocument
from rubric_store.formats.native import json_schema
from rubric_store.formats.reading import (
    FILE_EXTENSIONS,
    NamedRubric,
    RubricFormat,
    read_document,
    read_file,
    read_rubric,
)
from rubric_store.formats.writing import SUFFIXES, LostField, SerializedRubric, write_rubric

__all__ = [
    "FILE_EXTENSIONS",
    "SUFFIXES",
    "FormatError",
    "FormatProblem",
    "LostField",
    "NamedRubric",
    "RubricDocument",
    "RubricFormat",
    "SerializedRubric",
    "json_schema",
    "read_document",
    "read_file",
    "read_rubric",
    "write_rubric",
]
