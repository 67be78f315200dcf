"""The formats rubrics are published in, each read and written. None knows a database.

`read_document` and `parse_rubric` turn text into a rubric, `write_rubric` a rubric into text and what was lost, and
`read_file` whole files, of one rubric or of one a line.
"""

from rubric_store.formats.documents import RubricDocument
from rubric_store.formats.errors import FormatError, FormatProblem
from rubric_store.formats.files import FILE_EXTENSIONS, NamedRubric, read_file
from rubric_store.formats.native import json_schema
from rubric_store.formats.reading import read_document, read_rubric
from rubric_store.formats.recognition import RubricFormat
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
