"""Which errors are shortages, the reserve of descriptors, and the limit of open files."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.repl.shortage import (
    FREE_COUNT,
    HTTP_HEADROOM,
    DescriptorReserve,
    connections_that_fit,
    files_wanted,
    is_shortage,
    lacks_descriptors,
    open_file_count,
    warnings_of,
)
from tests.support.few_descriptors import no_descriptor_left


@pytest.fixture
def reserve() -> Iterator[DescriptorReserve]:
    """A reserve of 4, released at the end."""
    made = DescriptorReserve()
    made.hold(4)
    yield made
    made.hold(0)


@pytest.mark.parametrize("name", ["EMFILE", "ENFILE", "ENOMEM", "ENOBUFS", "ENOSPC", "EDQUOT", "EROFS"])
def test_what_an_operator_or_time_can_end_is_a_shortage(name: str) -> None:
    """Descriptors, memory, space, inodes, quota, write access."""
    assert is_shortage(OSError(getattr(errno, name), ""))


@pytest.mark.parametrize("name", ["EIO", "ENXIO", "ENODEV", "EBADF", "EINVAL", "EACCES", "ENOENT", "EUCLEAN"])
def test_a_broken_disk_is_no_shortage(name: str) -> None:
    """Nor is a wrong path, or a defect of ours."""
    assert not is_shortage(OSError(getattr(errno, name), ""))
    assert not is_shortage(ValueError(name))


def test_only_calls_that_make_a_descriptor_lack_one() -> None:
    """No write or sync fails for want of a descriptor; they may with any other shortage."""
    assert lacks_descriptors(OSError(errno.EMFILE, ""))
    assert lacks_descriptors(OSError(errno.ENFILE, ""))
    assert not any(lacks_descriptors(OSError(number, "")) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS))


def test_a_file_is_opened_from_the_reserve_when_no_descriptor_is_left(
    tmp_path: Path, reserve: DescriptorReserve
) -> None:
    """As often as the reserve has one; then the error is the system's. What was taken is held again later."""
    with no_descriptor_left():
        taken = [reserve.open(tmp_path / f"{number}", os.O_RDWR | os.O_CREAT) for number in range(4)]
        with pytest.raises(OSError, match="Too many open files"):
            reserve.open(tmp_path / "5", os.O_RDWR | os.O_CREAT)
        assert reserve.borrowed_count == 4
        reserve.look()
        assert reserve.short
    for fd in taken:
        assert not os.get_inheritable(fd)
        os.close(fd)
    before = open_file_count()
    reserve.look()
    assert not reserve.short
    after = open_file_count()
    assert before is not None
    assert after == before + 4


def test_a_reserve_that_cannot_be_held_leaves_descriptors_to_leveldb(reserve: DescriptorReserve) -> None:
    """LevelDB opens files by itself: while less than FREE_COUNT is free beside the reserve, half of the reserve is
    released, and the shortage is known; it ends when that many are free again."""
    with no_descriptor_left(spare=FREE_COUNT):
        reserve.look()
        assert not reserve.short
    with no_descriptor_left(spare=FREE_COUNT - 1):
        reserve.look()
        assert reserve.short
        fds = [os.open(os.devnull, os.O_RDONLY) for _ in range(FREE_COUNT - 1 + 2)]
        for fd in fds:
            os.close(fd)
        reserve.look()
        assert reserve.short
    reserve.look()
    assert not reserve.short


def test_connections_leave_descriptors_free(reserve: DescriptorReserve) -> None:
    """The number of a descriptor is at least the count of those below it: connections stop below the limit less their
    headroom. Without a reserve, as in programs that are no nodes, all are admitted."""
    limit = reserve.limit
    assert reserve.admits(limit - 101, 100)
    assert not reserve.admits(limit - 100, 100)
    assert DescriptorReserve().admits(limit, 100)


def test_the_limit_is_followed(reserve: DescriptorReserve) -> None:
    """A limit that is lowered while the process runs counts from the next look on."""
    with no_descriptor_left(spare=50):
        lowered = max(map(int, os.listdir("/proc/self/fd"))) + 51
        reserve.look()
        assert reserve.limit <= lowered
        assert not reserve.admits(reserve.limit - 10, 10)


def run_limited(soft: int, hard: int, script: str) -> str:
    """The output of a script in a process with these limits of open files."""
    limited = f"ulimit -Sn {soft}; ulimit -Hn {hard}; exec {sys.executable} -c '{script}'"
    return subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=50, check=True).stdout


def test_the_soft_limit_is_raised_as_far_as_needed_and_allowed() -> None:
    """To what was asked for, at most to the hard limit, and never lower."""
    script = "from isthmus.repl.shortage import *; print(*raise_file_limit({}))"
    assert run_limited(100, 5000, script.format(3000)) == "3000 5000\n"
    assert run_limited(100, 5000, script.format(30_000)) == "5000 5000\n"
    assert run_limited(400, 5000, script.format(200)) == "400 5000\n"


def test_operators_are_warned_before_something_is_short() -> None:
    """Of a connections_limit that does not fit, of descriptors that are nearly all taken, and of few inodes."""
    assert warnings_of(files_wanted(4096), 100, 4096, None) == []
    assert warnings_of(10_000, 7_999, 4096, 1_280) == []
    (few,) = warnings_of(1024, 100, 4096, None)
    assert few == (
        "listen.connections_limit is 4,096, but the limit of open files, 1,024, leaves room for about "
        f"{connections_that_fit(1024)} connections"
    )
    assert warnings_of(10_000, 8_000, 4096, 1_279) == [
        "8,000 files or more are open, the limit is 10,000",
        "the file system of the data directory has 1,279 free inodes",
    ]
    assert connections_that_fit(HTTP_HEADROOM) == 0
