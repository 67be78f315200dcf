"""The spool returns rows unchanged and in order, including those of earlier processes."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import from_json, to_json

from judge_server.ledger.spool import Spool, SpoolEntry, SpoolFull, decode
from rubric_store.ledger.rows import LedgerRows
from tests.judge_server.ledger.judged import rows, some_fail
from tests.judge_server.support import STEPPED, request

BIG = 2**30


async def made(*texts: str) -> LedgerRows:
    """The rows of one request."""
    return await rows(request(*texts, run="r\0ü", step=1), script=some_fail)


def read_rows(file: SpoolEntry) -> LedgerRows:
    return decode(file.read())


def files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.rows"))


async def test_rows_come_back_unchanged(tmp_path: Path) -> None:
    spool = Spool(tmp_path, BIG)
    group = {"id": "g", "prompt": "?", "grounding": "G", "responses": [{"text": STEPPED, "tokens": 3, "stopped": True}]}
    for given in (await made("Yes.", "ü😀"), await rows(request(groups=[group], reward={"mode": "stepwise"}))):
        spooled = spool.add(given)
        read = read_rows(spooled)
        assert read == given
        assert [type(row) for kind in read for row in kind] == [type(row) for kind in given for row in kind]
        assert spooled.uses == len(given.uses)


async def test_rows_that_are_encoded_in_several_parts_come_back_unchanged(tmp_path: Path) -> None:
    given = await made("Yes.", "No.")
    uses = [use._replace(place=place) for place in range(3000) for use in given.uses]
    many = given._replace(uses=uses)
    assert read_rows(Spool(tmp_path, BIG).add(many)) == many


async def test_files_leave_in_the_order_they_came(tmp_path: Path) -> None:
    spool = Spool(tmp_path, BIG)
    given = [await made(str(n)) for n in range(3)]
    added = [spool.add(each) for each in given]
    assert spool.bytes == sum(path.stat().st_size for path in files(tmp_path))
    for file, rows_ in zip(added, given, strict=True):
        first = spool.first()
        assert first is file
        assert read_rows(first) == rows_
        spool.remove(first)
    assert (spool.first(), spool.bytes, files(tmp_path)) == (None, 0, [])


async def test_files_of_a_dead_process_come_first_and_those_of_a_living_one_stay(tmp_path: Path) -> None:
    dead, living = Spool(tmp_path, BIG), Spool(tmp_path, BIG)
    left = [await made("a"), await made("b")]
    for each in left:
        dead.add(each)
    living.add(await made("c"))
    dead.close()
    heir = Spool(tmp_path, BIG)
    own = await made("d")
    heir.add(own)
    taken = []
    while (file := heir.first()) is not None:
        taken.append((read_rows(file), file.uses))
        heir.remove(file)
    assert taken == [(left[0], None), (left[1], None), (own, 7)]
    heir.close()
    assert len(files(tmp_path)) == 1
    living.close()


async def test_an_empty_spool_leaves_no_folder(tmp_path: Path) -> None:
    spool = Spool(tmp_path, BIG)
    spool.remove(spool.add(await made("a")))
    spool.close()
    assert os.listdir(tmp_path) == []


async def test_a_full_spool_accepts_nothing_until_a_file_leaves(tmp_path: Path) -> None:
    given = await made("a")
    size = Spool(tmp_path / "other", BIG).add(given).size
    spool = Spool(tmp_path / "small", size + 10)
    only = spool.add(given)
    with pytest.raises(SpoolFull):
        spool.add(given)
    assert len(files(tmp_path / "small")) == 1
    spool.remove(only)
    spool.add(given)


async def test_a_half_written_file_is_not_read(tmp_path: Path) -> None:
    spool = Spool(tmp_path, BIG)
    spool.add(await made("a"))
    folder = files(tmp_path)[0].parent
    (folder / "000000000009.half").write_bytes(b"[[")
    spool.close()
    heir = Spool(tmp_path, BIG)
    heir.remove(heir.oldest(1)[0])
    assert heir.first() is None
    heir.close()
    assert os.listdir(tmp_path) == []


async def test_the_oldest_files_are_batched_up_to_a_number_of_uses_and_uncounted_ones_come_alone(
    tmp_path: Path,
) -> None:
    dead = Spool(tmp_path, BIG)
    for text in ("a", "b"):
        dead.add(await made(text))
    dead.close()
    heir = Spool(tmp_path, BIG)
    own = [heir.add(await made(text)) for text in ("c", "d", "e")]
    for _ in range(2):
        (file,) = heir.oldest(1000)
        assert file.uses is None
        heir.remove(file)
    assert heir.oldest(1) == own[:1]  # at least one
    assert heir.oldest(7) == own[:1]
    assert heir.oldest(14) == own[:2]
    assert heir.oldest(1000) == own
    heir.close()


async def test_columns_take_less_space_than_rows(tmp_path: Path) -> None:
    given = await made(*[f"{n} is prime." for n in range(50)])
    spooled = Spool(tmp_path, BIG).add(given)
    assert spooled.size < 0.8 * len(to_json(given, bytes_mode="base64"))
    assert read_rows(spooled) == given


async def test_a_file_from_before_the_newest_column_is_read_and_one_that_lacks_more_is_not(tmp_path: Path) -> None:
    given = await made("a", "b")
    spooled = Spool(tmp_path, BIG).add(given)
    kinds = from_json(spooled.read())
    count, columns = kinds[1]
    files(tmp_path)[0].write_bytes(to_json([kinds[0], [count, columns[:-1]], *kinds[2:]]))
    older = [row._replace(members=None) for row in given.verdicts]
    assert read_rows(spooled) == given._replace(verdicts=older)
    files(tmp_path)[0].write_bytes(to_json([kinds[0], [count, columns[:-2]], *kinds[2:]]))
    oldest = [row._replace(members=None, raw_probability=None) for row in given.verdicts]
    assert read_rows(spooled) == given._replace(verdicts=oldest)
    files(tmp_path)[0].write_bytes(to_json([kinds[0], [count, columns[:-3]], *kinds[2:]]))
    with pytest.raises(ValueError, match="VerdictRow has 11 columns"):
        read_rows(spooled)


@contextmanager
def no_space(*, name: str = "write_bytes", number: int = errno.ENOSPC) -> Iterator[None]:
    """Make writing files fail, or the named method of `Path`."""
    done = getattr(Path, name)

    def refuse(path: Path, *given: Any, **named: Any) -> Any:
        if path.suffix in (".half", ".rows"):
            raise OSError(number, os.strerror(number))
        return done(path, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, name, refuse)
        yield


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.EIO])
async def test_rows_that_cannot_be_spooled_wait_in_memory_until_they_can(tmp_path: Path, number: int) -> None:
    spool, given = Spool(tmp_path, BIG), [await made(text) for text in "abc"]
    with no_space(number=number):
        held = [spool.add(each) for each in given[:2]]
        spool.flush_pending()
        assert os.strerror(number) in (spool.problem or "")
        assert spool.memory_bytes == sum(each.size for each in held)
        assert [read_rows(each) for each in spool.oldest(1000)] == given[:2]
    last = spool.add(given[2])
    assert (last.path, spool.problem is None) == (None, False)  # it does not overtake waiting rows
    spool.flush_pending()
    assert (spool.problem, spool.memory_bytes, spool.bytes) == (None, 0, sum(each.size for each in (*held, last)))
    spool.close()
    heir = Spool(tmp_path, BIG)
    assert [decode(path.read_bytes()) for path in files(tmp_path)] == given
    heir.close()


async def test_rows_taken_from_memory_leave_no_file_behind(tmp_path: Path) -> None:
    spool = Spool(tmp_path, BIG)
    with no_space():
        first, second = spool.add(await made("a")), spool.add(await made("b"))
    spool.remove(first)
    spool.flush_pending()
    assert (len(files(tmp_path)), spool.bytes, spool.memory_bytes) == (1, second.size, 0)


async def test_memory_is_bounded_and_rows_left_in_it_at_the_end_are_counted(tmp_path: Path) -> None:
    given = await made("a")
    size = Spool(tmp_path / "other", BIG).add(given).size
    spool = Spool(tmp_path / "small", BIG, max_memory_bytes=size)
    with no_space():
        spool.add(given)
        with pytest.raises(SpoolFull, match=r"cannot be written .* and memory is full"):
            spool.add(given)
        assert spool.close() == len(given.uses)


async def test_a_file_that_cannot_be_removed_is_removed_later_and_blocks_no_other(tmp_path: Path) -> None:
    spool = Spool(tmp_path, BIG)
    first, second = spool.add(await made("a")), spool.add(await made("b"))
    with no_space(name="unlink", number=errno.EPERM):
        spool.remove(first)
        spool.flush_pending()
        assert (spool.first(), len(files(tmp_path))) == (second, 2)
    spool.flush_pending()
    assert (len(files(tmp_path)), spool.bytes) == (1, second.size)


async def test_a_folder_in_place_of_a_file_blocks_nothing(tmp_path: Path) -> None:
    spool = Spool(tmp_path, BIG)
    folder = tmp_path / os.listdir(tmp_path)[0]
    (folder / "000000000000.rows").mkdir()
    spool.add(await made("a"))
    spool.flush_pending()
    assert spool.memory_bytes == 0
    spool.close()
    heir = Spool(tmp_path, BIG)
    (left,) = heir.oldest(1000)
    assert left.path == folder / "000000000001.rows"
    heir.close()
