from pathlib import Path

import pytest

from fastverify.whole_file import write_whole


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "table"
    write_whole(path, b"first")
    write_whole(path, b"second")
    assert path.read_bytes() == b"second"
    assert list(path.parent.iterdir()) == [path]


def test_what_cannot_be_put_in_place_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    with pytest.raises(OSError, match="table"):
        write_whole(tmp_path / "table", b"data")
    assert [entry.name for entry in tmp_path.iterdir()] == ["table"]
