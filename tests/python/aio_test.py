"""sluice.ops.aio: transfers between memory and files."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy
import pytest
import sluice
from conftest import exit_code_of_fork, free_rates_kept, small_file_system
from sluice.ops.aio import aio_handle

MIB = 1 << 20


def random_bytes(count: int, seed: int = 1) -> numpy.ndarray:
    return numpy.random.default_rng(seed).integers(0, 256, count, dtype=numpy.uint8)


def test_the_getters_give_what_was_set() -> None:
    handle = aio_handle(block_size=65536, queue_depth=7, single_submit=True, overlap_events=True, intra_op_parallelism=3)
    assert (handle.get_block_size(), handle.get_queue_depth(), handle.get_intra_op_parallelism()) == (65536, 7, 3)
    assert (handle.get_single_submit(), handle.get_overlap_events(), handle.get_alignment()) == (True, True, 4096)
    assert handle.backend in ("io_uring", "libaio", "threads")
    assert (handle.backend == "io_uring") == (handle.why_not_better == "")


def test_the_defaults_are_deepspeeds() -> None:
    handle = aio_handle()
    assert (handle.get_block_size(), handle.get_queue_depth(), handle.get_intra_op_parallelism()) == (MIB, 128, 1)
    assert (handle.get_single_submit(), handle.get_overlap_events()) == (False, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"block_size": 1000}, "multiple of"),
        ({"block_size": -4096}, "block_size is -4096"),
        ({"queue_depth": 0}, "queue_depth is 0"),
        ({"queue_depth": 5000}, "5000"),
    ],
)
def test_a_number_out_of_range_is_a_value_error(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        aio_handle(**arguments)


# Sizes that are and are not multiples of the drive's block.
@pytest.mark.parametrize("count", [1, 4096, MIB, 3 * MIB + 517])
def test_what_was_written_is_read(tmp_path: Path, count: int) -> None:
    handle, path, data = aio_handle(), tmp_path / "f", random_bytes(count)
    assert handle.sync_pwrite(data, path) == 1
    assert path.read_bytes() == data.tobytes()
    back = numpy.zeros(count, numpy.uint8)
    assert handle.sync_pread(back, str(path)) == 1
    assert (back == data).all()


def test_many_requests_end_with_one_wait(tmp_path: Path) -> None:
    handle, data = aio_handle(block_size=65536, queue_depth=4), random_bytes(MIB)
    for number in range(9):
        assert handle.async_pwrite(data[number:], tmp_path / str(number)) == 0
    assert handle.wait() == 9
    assert handle.wait() == 0
    back = [numpy.zeros(MIB - number, numpy.uint8) for number in range(9)]
    for number in range(9):
        assert handle.async_pread(back[number], tmp_path / str(number)) == 0
    assert handle.wait() == 9
    assert all((back[number] == data[number:]).all() for number in range(9))


def test_offsets_are_in_bytes_and_other_bytes_stay(tmp_path: Path) -> None:
    handle, path = aio_handle(), tmp_path / "f"
    handle.sync_pwrite(random_bytes(MIB, 1), path)
    expected = bytearray(path.read_bytes())
    patch = random_bytes(10_000, 2)
    handle.sync_pwrite(patch, path, 123_457)
    expected[123_457 : 123_457 + 10_000] = patch.tobytes()
    assert path.read_bytes() == expected
    back = bytearray(10_000)
    handle.sync_pread(back, path, 123_457)
    assert back == patch.tobytes()
    handle.sync_pwrite(patch, path, 2 * MIB)  # beyond the end: the gap is zeros
    assert path.stat().st_size == 2 * MIB + 10_000
    assert path.read_bytes()[MIB : 2 * MIB] == bytes(MIB)


def test_pieces_of_one_new_file_may_be_in_flight_together(tmp_path: Path) -> None:
    handle, path, data = aio_handle(), tmp_path / "f", random_bytes(8 * MIB)
    for piece in reversed(range(8)):
        handle.async_pwrite(data[piece * MIB : (piece + 1) * MIB], path, piece * MIB)
    assert handle.wait() == 8
    assert path.read_bytes() == data.tobytes()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, "float32", "int64"])
def test_anything_with_memory_is_a_buffer(tmp_path: Path, kind: object) -> None:
    data = random_bytes(8192)
    buffer = data.view(kind) if isinstance(kind, str) else kind(data.tobytes())
    handle, path = aio_handle(), tmp_path / "f"
    handle.pwrite(buffer, path, False, False)
    assert path.read_bytes() == data.tobytes()


def test_pread_and_pwrite_take_deepspeeds_arguments(tmp_path: Path) -> None:
    handle, path, data = aio_handle(), tmp_path / "f", random_bytes(5000)
    assert handle.pwrite(data, path, True, False) == 1
    assert handle.pwrite(data, path, True, True, 5000) == 0
    assert handle.wait() == 1
    back = numpy.zeros(10_000, numpy.uint8)
    assert handle.pread(back, path, True, True) == 0
    assert handle.wait() == 1
    assert (back == numpy.concatenate([data, data])).all()
    assert handle.read(back, path, True) == 1
    assert handle.write(back, path) == 1


def test_validation_finds_a_difference(tmp_path: Path) -> None:
    handle, path, data = aio_handle(), tmp_path / "f", random_bytes(2 * MIB)
    handle.sync_pwrite(data, path)
    back = numpy.zeros_like(data)
    handle.pread(back, path, True, True)
    while (back != data).any():  # until every byte has arrived
        pass
    changed = bytearray(path.read_bytes())
    changed[1_500_000] ^= 1
    path.write_bytes(changed)
    with pytest.raises(sluice.StorageError, match="differs from the buffer at byte 1500000 of 2097152 at offset 0"):
        handle.wait()


def test_a_missing_file_is_named() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        aio_handle().sync_pread(bytearray(10), "/no/such/file")
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == "/no/such/file"


def test_a_short_file_is_an_error_that_says_where_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(bytes(10_000))
    handle = aio_handle()
    with pytest.raises(OSError, match="end of file after") as caught:
        handle.sync_pread(bytearray(20_000), path)
    assert caught.value.errno == errno.EIO
    assert caught.value.filename == str(path)
    handle.async_pread(bytearray(20_000), path)
    handle.async_pread(bytearray(10_000), path)
    with pytest.raises(OSError, match="end of file after"):
        handle.wait()
    assert handle.wait() == 0  # the failed request is gone, the handle works
    assert handle.sync_pread(bytearray(10_000), path) == 1


def test_a_full_disk_is_found_before_anything_is_written(tmp_path: Path) -> None:
    with small_file_system(tmp_path, 4 * MIB):
        handle, path = aio_handle(), tmp_path / "f"
        handle.sync_pwrite(bytes(MIB), path)
        with pytest.raises(OSError, match=r"needed 8\.00 MiB.*; 3\.00 MiB are free") as caught:
            handle.sync_pwrite(bytes(8 * MIB), path)
        assert caught.value.errno == errno.ENOSPC
        assert path.stat().st_size == MIB


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        aio_handle().sync_pwrite(bytes(10), tmp_path)


@pytest.mark.parametrize(
    ("buffer", "error", "message"),
    [
        (bytes(10), BufferError, "not writable"),
        (numpy.zeros((4, 4))[:, 1], ValueError, "contiguous"),
        ([1, 2], TypeError, "a buffer is a PyTorch tensor, a NumPy array or an object with the buffer protocol, not list"),
    ],
)
def test_a_buffer_that_cannot_be_read_into(tmp_path: Path, buffer: object, error: type, message: str) -> None:
    (tmp_path / "f").write_bytes(bytes(100))
    with pytest.raises(error, match=message):
        aio_handle().sync_pread(buffer, tmp_path / "f")


def test_a_wrong_offset_is_refused(tmp_path: Path) -> None:
    for offset in (-1, 2**63, 2**64):
        with pytest.raises(ValueError, match=f"file_offset is {offset}; it must be at least 0 bytes and below"):
            aio_handle().sync_pread(bytearray(1), tmp_path / "f", offset)
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        aio_handle().sync_pread(bytearray(1), tmp_path / "f", 1.5)  # type: ignore[arg-type]


def test_a_file_name_is_never_cut(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"precious")
    with pytest.raises(ValueError, match="has a NUL character"):
        aio_handle().sync_pwrite(b"anything", f"{tmp_path}/x\0y")
    assert (tmp_path / "x").read_bytes() == b"precious"


def test_a_file_name_need_not_be_utf_8(tmp_path: Path) -> None:
    handle, name, back = aio_handle(), os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe"), bytearray(8)
    handle.sync_pwrite(b"anything", name)
    with open(name, "rb") as file:
        assert file.read() == b"anything"
    assert handle.sync_pread(back, name) == 1
    assert back == b"anything"
    with pytest.raises(OSError, match="end of file after") as caught:
        handle.sync_pread(bytearray(9), name)
    assert caught.value.filename == name


def test_a_buffer_lives_until_its_request_has_ended(tmp_path: Path) -> None:
    handle, data = aio_handle(), random_bytes(4 * MIB)
    before = sys.getrefcount(data)
    handle.async_pwrite(data, tmp_path / "f")
    assert sys.getrefcount(data) > before
    handle.wait()
    assert sys.getrefcount(data) == before
    for _ in range(20):  # nobody but the handle holds these
        handle.async_pwrite(random_bytes(MIB), tmp_path / "g")
        gc.collect()
        handle.wait()
    assert (tmp_path / "g").read_bytes() == random_bytes(MIB).tobytes()


def test_a_bytearray_in_flight_cannot_be_resized(tmp_path: Path) -> None:
    handle, data = aio_handle(), bytearray(MIB)
    handle.async_pwrite(data, tmp_path / "f")
    with pytest.raises(BufferError):
        data.extend(b"more")
    handle.wait()
    data.extend(b"more")


def test_a_dropped_handle_ends_its_requests(tmp_path: Path) -> None:
    for number in range(3):
        handle = aio_handle(block_size=16384, queue_depth=2)
        for piece in range(4):
            handle.async_pwrite(random_bytes(MIB, piece), tmp_path / f"{number}.{piece}")
        del handle
        gc.collect()
        for piece in range(4):
            assert (tmp_path / f"{number}.{piece}").read_bytes() == random_bytes(MIB, piece).tobytes()


def test_a_dropped_handle_reports_a_failed_request(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "short").write_bytes(b"x")
    handle = aio_handle()
    handle.async_pread(bytearray(8192), tmp_path / "short")
    del handle
    gc.collect()
    assert "end of file after" in capfd.readouterr().err


def test_requests_in_flight_at_the_end_of_a_script(tmp_path: Path) -> None:
    code = (
        "import sluice.ops.aio\n"
        "handle = sluice.ops.aio.aio_handle(block_size=4096, queue_depth=1)\n"
        "for n in range(4): handle.async_pwrite(bytes(1 << 20), f'{n}')\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert [(tmp_path / str(n)).stat().st_size for n in range(4)] == [MIB] * 4


def test_locked_memory_beyond_the_limit_says_so() -> None:
    code = """
import os, resource, sluice._core
resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)  # root may lock what it likes
try:
    sluice._core.LockedMemory(1 << 26)
except MemoryError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout.strip() == (
        "page-locked memory (the limit is RLIMIT_MEMLOCK; raise it with ulimit -l): "
        "64.0 MiB requested on tier host, 1.00 MiB available"
    ), result.stderr


def test_wait_releases_the_gil(tmp_path: Path) -> None:
    handle, path, data = aio_handle(), tmp_path / "f", numpy.zeros(64 * MIB, numpy.uint8)
    handle.sync_pwrite(data, path)

    def read_all() -> None:
        for _ in range(4):
            handle.async_pread(data, path)
        assert handle.wait() == 4

    kept = free_rates_kept(read_all, 0.2)[-1]
    print(f"a thread that counts keeps {kept:.2f} of its free rate during wait()")
    assert kept >= 0.5


def test_locked_memory_is_made_and_freed_without_the_gil() -> None:
    try:
        sluice._core.LockedMemory(256 * MIB)
    except MemoryError as error:
        pytest.skip(str(error))
    kept = free_rates_kept(lambda: sluice._core.LockedMemory(256 * MIB), 0.2)[-1]
    print(f"a thread that counts keeps {kept:.2f} of its free rate while memory is locked and freed")
    assert kept >= 0.5


def test_threads_may_have_handles_of_their_own(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            handle, data, back = aio_handle(queue_depth=4), random_bytes(MIB, number), bytearray(MIB)
            for _ in range(10):
                handle.async_pwrite(data, tmp_path / str(number))
                handle.wait()
                handle.sync_pread(back, tmp_path / str(number))
                assert back == data.tobytes()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# Whole blocks, and a last one that is not.
@pytest.mark.parametrize("last", [8192, 1000])
def test_handles_of_several_threads_extend_one_file(tmp_path: Path, last: int) -> None:
    threads, blocks, block = 8, 64, 8192
    data = random_bytes((blocks - 1) * block + last).tobytes()

    def work(first: int, path: Path) -> None:
        handle = aio_handle()
        for number in range(first, blocks, threads):
            handle.async_pwrite(data[number * block : (number + 1) * block], path, number * block)
        handle.wait()

    for attempt in range(20):
        path = tmp_path / str(attempt)
        running = [threading.Thread(target=work, args=(first, path)) for first in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        assert path.read_bytes() == data


def test_a_forked_child_ends_and_uses_a_handle_of_its_own(tmp_path: Path) -> None:
    handle, data = aio_handle(), random_bytes(MIB)
    handle.sync_pwrite(data, tmp_path / "f")
    handle.async_pread(bytearray(MIB), tmp_path / "f")  # in flight during the fork

    def child() -> None:
        try:
            handle.wait()
        except sluice.Error as error:
            assert "made before a fork" in str(error)
        else:
            raise AssertionError("the parent's handle answered in the child")
        fresh, back = aio_handle(), bytearray(MIB)
        fresh.async_pread(back, tmp_path / "f")
        assert fresh.wait() == 1
        assert back == data.tobytes()

    assert exit_code_of_fork(child) == 0
    assert handle.wait() == 1  # the parent's went on


def test_a_forked_child_that_uses_nothing_ends(tmp_path: Path) -> None:
    handle = aio_handle()
    handle.sync_pwrite(bytes(MIB), tmp_path / "f")
    assert exit_code_of_fork(lambda: None) == 0
    pid = os.fork()
    if pid == 0:
        try:
            del handle
            gc.collect()
        finally:
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
