"""A journal outlives a kill at any byte."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server.generation.run_folder import Journal, read_journal
from tests.hypothesis_examples import examples

RECORDS = st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=12), max_size=3), min_size=1, max_size=5)


@given(RECORDS, st.data())
@settings(max_examples=examples(40), deadline=None)
def test_what_was_appended_before_a_kill_is_read_and_what_was_cut_is_as_if_it_had_not_been(
    records: list[dict[str, str]], data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "journal.jsonl"
        ends = [0]
        with Journal(file) as journal:
            for record in records:
                journal.append(record)
                ends.append(file.stat().st_size)
        kept = data.draw(st.integers(0, ends[-1]))
        file.write_bytes(file.read_bytes()[:kept])
        whole = sum(end <= kept for end in ends[1:])
        assert list(read_journal(file)) == records[:whole]
        with Journal(file) as journal:
            journal.append({"more": "1"})
        assert list(read_journal(file)) == [*records[:whole], {"more": "1"}]


def test_a_line_separator_in_a_text_ends_no_record(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.append({"text": "a\u2028b\x85c\nd"})
    assert list(read_journal(tmp_path / "j")) == [{"text": "a\u2028b\x85c\nd"}]


def test_a_long_line_that_was_cut_is_dropped_whole(tmp_path: Path) -> None:
    file = tmp_path / "j"
    with Journal(file) as journal:
        journal.append({"a": 1})
        journal.append({"b": "x" * 200_000})
    file.write_bytes(file.read_bytes()[:-5])
    with Journal(file) as journal:
        journal.append({"c": 3})
    assert list(read_journal(file)) == [{"a": 1}, {"c": 3}]


def test_there_are_no_records_where_there_is_no_file(tmp_path: Path) -> None:
    assert list(read_journal(tmp_path / "none")) == []


@pytest.mark.parametrize("line", [b"{broken}\n", b"[1]\n", b"\xff\n"])
def test_a_whole_line_that_is_no_record_is_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "j").write_bytes(b'{"a": 1}\n' + line + b'{"b": 2}\n')
    with pytest.raises(ValueError, match=r"j:2 is not a JSON record"):
        list(read_journal(tmp_path / "j"))
