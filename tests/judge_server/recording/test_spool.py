"""The spool: what is in it comes back as it was, in order, whoever had put it there."""

import os
from pathlib import Path

import pytest
from pydantic_core import from_json, to_json

from judge_server.recording.spool import Spool, SpoolFull, read_rows
from tests.judge_server.recording.judged import rows, some_fail
from tests.judge_server.support import STEPPED, request
from trainer_client.wire.ledger_rows import LedgerRows

BIG = 2**30


async def made(*texts: str) -> LedgerRows:
    """The rows of one request."""
    return await rows(request(*texts, run="r\0ü", step=1), script=some_fail)


def files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.rows"))


async def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    spool = Spool(tmp_path, BIG)
    group = {"id": "g", "prompt": "?", "grounding": "G", "responses": [{"text": STEPPED, "tokens": 3, "stopped": True}]}
    for given in (await made("Yes.", "ü😀"), await rows(request(groups=[group], reward={"mode": "stepwise"}))):
        spooled = spool.add(given)
        read = read_rows(spooled)
        assert read == given
        assert [type(row) for kind in read for row in kind] == [type(row) for kind in given for row in kind]
        assert spooled.uses == len(given.uses)


async def test_files_leave_in_the_order_they_came(tmp_path: Path) -> None:
    spool = Spool(tmp_path, BIG)
    given = [await made(str(n)) for n in range(3)]
    added = [spool.add(each) for each in given]
    assert spool.bytes == sum(path.stat().st_size for path in files(tmp_path))
    for file, rows_ in zip(added, given, strict=True):
        first = spool.first()
        assert first is file
        assert read_rows(first) == rows_
        spool.remove_first()
    assert (spool.first(), spool.bytes, files(tmp_path)) == (None, 0, [])


async def test_what_a_dead_process_left_comes_first_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
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
        heir.remove_first()
    assert taken == [(left[0], None), (left[1], None), (own, 7)]
    heir.close()
    assert len(files(tmp_path)) == 1
    living.close()


async def test_a_spool_left_empty_leaves_no_folder(tmp_path: Path) -> None:
    spool = Spool(tmp_path, BIG)
    spool.add(await made("a"))
    spool.remove_first()
    spool.close()
    assert os.listdir(tmp_path) == []


async def test_a_full_spool_takes_nothing_more_until_something_left(tmp_path: Path) -> None:
    given = await made("a")
    size = Spool(tmp_path / "other", BIG).add(given).size
    spool = Spool(tmp_path / "small", size + 10)
    spool.add(given)
    with pytest.raises(SpoolFull):
        spool.add(given)
    assert len(files(tmp_path / "small")) == 1
    spool.remove_first()
    spool.add(given)


async def test_a_half_written_file_is_not_read(tmp_path: Path) -> None:
    spool = Spool(tmp_path, BIG)
    spool.add(await made("a"))
    folder = files(tmp_path)[0].parent
    (folder / "000000000009.half").write_bytes(b"[[")
    spool.close()
    heir = Spool(tmp_path, BIG)
    heir.remove_first()
    assert heir.first() is None
    heir.close()
    assert os.listdir(tmp_path) == []


async def test_the_oldest_come_together_up_to_a_number_of_uses_and_uncounted_ones_alone(tmp_path: Path) -> None:
    dead = Spool(tmp_path, BIG)
    for text in ("a", "b"):
        dead.add(await made(text))
    dead.close()
    heir = Spool(tmp_path, BIG)
    own = [heir.add(await made(text)) for text in ("c", "d", "e")]
    for _ in range(2):
        (file,) = heir.oldest(1000)
        assert file.uses is None
        heir.remove_first()
    assert heir.oldest(1) == own[:1]  # at least one
    assert heir.oldest(7) == own[:1]
    assert heir.oldest(14) == own[:2]
    assert heir.oldest(1000) == own
    heir.close()


async def test_columns_take_less_room_than_rows(tmp_path: Path) -> None:
    given = await made(*[f"{n} is prime." for n in range(50)])
    spooled = Spool(tmp_path, BIG).add(given)
    assert spooled.size < 0.8 * len(to_json(given, bytes_mode="base64"))
    assert read_rows(spooled) == given


async def test_a_file_of_before_the_newest_column_is_read_and_one_that_lacks_more_is_not(tmp_path: Path) -> None:
    given = await made("a", "b")
    spooled = Spool(tmp_path, BIG).add(given)
    kinds = from_json(spooled.path.read_bytes())
    count, columns = kinds[1]
    spooled.path.write_bytes(to_json([kinds[0], [count, columns[:-1]], *kinds[2:]]))
    older = [row._replace(raw_probability=None) for row in given.verdicts]
    assert read_rows(spooled) == given._replace(verdicts=older)
    spooled.path.write_bytes(to_json([kinds[0], [count, columns[:-2]], *kinds[2:]]))
    with pytest.raises(ValueError, match="VerdictRow has 10 columns"):
        read_rows(spooled)
