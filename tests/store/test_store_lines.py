import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import StoreError
from stretto.store.lines import LineFile, cut_torn_line, read_lines


def texts(path: Path) -> list[str]:
    return [line.decode().rstrip("\n") for _, line in read_lines(path)]


lines = st.lists(st.text("abc", max_size=6), max_size=8)


@settings(deadline=None)
@given(lines, st.integers(0, 10**6), lines)
def test_cut_anywhere_then_append(tmp_path_factory, before, at, after):
    path = tmp_path_factory.mktemp("lines") / "log"
    file = LineFile(path)
    for line in before:
        file.append(line)
    file.close()
    data = path.read_bytes()
    cut = data[: at % (len(data) + 1)]
    path.write_bytes(cut)
    whole = cut.decode().split("\n")[:-1]
    assert texts(path) == whole  # readers tolerate a torn line
    assert cut_torn_line(path) == len(cut) - sum(len(line) + 1 for line in whole)
    assert cut_torn_line(path) == 0
    file = LineFile(path)
    for line in after:
        file.append(line)
    file.close()
    assert texts(path) == whole + after


def test_a_long_torn_line_is_cut(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"one\n" + b"x" * 200_000)
    assert cut_torn_line(path) == 200_000
    assert path.read_bytes() == b"one\n"


def test_a_missing_file_has_no_lines_and_stays_missing(tmp_path):
    assert texts(tmp_path / "log") == []
    assert cut_torn_line(tmp_path / "log") == 0
    assert not (tmp_path / "log").exists()


def test_nothing_is_written_before_the_flush(tmp_path):
    file = LineFile(tmp_path / "log")
    file.append("one")
    assert texts(tmp_path / "log") == []
    file.flush()
    assert texts(tmp_path / "log") == ["one"]
    file.close()
    file.close()


def test_a_failed_write_leaves_no_half_line_and_can_be_repeated(tmp_path):
    path = tmp_path / "log"
    file = LineFile(path)
    file.append("one")
    file.flush()
    file.append("x" * 1000)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, old[1]))
    try:
        with pytest.raises(StoreError, match=r"log cannot be written: File too large\. Free space"):
            file.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert path.read_bytes() == b"one\n"
    file.close()
    assert texts(path) == ["one", "x" * 1000]
