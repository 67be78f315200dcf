"""The formats that rubrics are published in, each read and written.

`read_document` and `read_rubric` turn text into a rubric; `write_rubric` turns a rubric into text and lists what was
lost; `read_file` reads whole files, of one rubric or of one per line.
"""

from rubric_store.formats.documents import FormatError, FormatProblem, RubricDocument
from rubric_store.formats.native import json_schema
from rubric_store.formats.reading import (
    FILE_EXTENSIONS,
    SUFFIXES,
    LostField,
    NamedRubric,
    RubricFormat,
    SerializedRubric,
    read_document,
    read_file,
    read_rubric,
    write_rubric,
)

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
