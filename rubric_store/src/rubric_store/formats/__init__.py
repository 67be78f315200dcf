"""The formats that rubrics are published in, each read and written.

`read_document` and `read_rubric` turn text into a rubric; `write_rubric` turns a rubric into text and lists what was
lost; `read_file` and `read_rows` read whole files, of one rubric or of several.
"""

from rubric_store.formats.documents import FormatError, FormatProblem, RubricDocument, fold_problems
from rubric_store.formats.files import FILE_EXTENSIONS, NamedRubric, RubricCounts, RubricFile, read_file, read_rows
from rubric_store.formats.reading import read_document, read_rubric
from rubric_store.formats.table import FORMATS, WRITTEN_FORMATS, RubricFormat
from rubric_store.formats.writing import LostField, SerializedRubric, write_rubric

__all__ = [
    "FILE_EXTENSIONS",
    "FORMATS",
    "WRITTEN_FORMATS",
    "FormatError",
    "FormatProblem",
    "LostField",
    "NamedRubric",
    "RubricCounts",
    "RubricDocument",
    "RubricFile",
    "RubricFormat",
    "SerializedRubric",
    "fold_problems",
    "read_document",
    "read_file",
    "read_rows",
    "read_rubric",
    "write_rubric",
]
