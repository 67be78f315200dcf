"""The formats rubrics are published in, each read and written. None knows a database.

`read_document` and `read_rubric` turn text into a rubric, `write_rubric` a rubric into text and what was lost, and
`read_file` whole files, of one rubric or of one a line.
"""

from rubric_store.formats.documents import RubricDocument
from rubric_store.formats.errors import FormatError, Problem
from rubric_store.formats.files import ENDINGS, NamedRubric, read_file
from rubric_store.formats.native import json_schema
from rubric_store.formats.reading import read_document, read_rubric
from rubric_store.formats.recognition import RubricFormat
from rubric_store.formats.writing import SUFFIXES, Loss, Written, write_rubric

__all__ = [
    "ENDINGS",
    "SUFFIXES",
    "FormatError",
    "Loss",
    "NamedRubric",
    "Problem",
    "RubricDocument",
    "RubricFormat",
    "Written",
    "json_schema",
    "read_document",
    "read_file",
    "read_rubric",
    "write_rubric",
]
