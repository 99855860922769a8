"""Files of a run, in a folder and in an archive."""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plattli._source import Archive, Folder
from plattli.errors import CorruptRunError, MissingFileError, NotARunError, PlattliError, ReaderClosedError

FILES = {"plattli.json": b"{}", "a/b.f32": bytes(range(200)), "empty.f32": b"", "ü.jsonl": b"1\n2\n"}


def folder(path):
    """The files in a folder."""
    for name, data in FILES.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return Folder(path)


def archive(path, **options):
    """The files in an archive."""
    with zipfile.ZipFile(path / "x.plattli", "w", **options) as file:
        for name, data in FILES.items():
            file.writestr(name, data)
    return Archive(path / "x.plattli")


def prefixed(path):
    """The files in an archive behind bytes that do not belong to it."""
    archive(path).close()
    data = (path / "x.plattli").read_bytes()
    (path / "x.plattli").write_bytes(b"#!/bin/something\n" + data)
    return Archive(path / "x.plattli")


@pytest.fixture(params=["folder", "stored", "deflated", "prefixed"])
def source(request, tmp_path):
    """The same files, kept in each of the ways."""
    made = {
        "folder": lambda: folder(tmp_path),
        "stored": lambda: archive(tmp_path),
        "deflated": lambda: archive(tmp_path, compression=zipfile.ZIP_DEFLATED),
        "prefixed": lambda: prefixed(tmp_path),
    }[request.param]()
    yield made
    made.close()


def test_random_access(source):
    """Any stretch of any file can be read, and ends where the file ends."""
    for name, data in FILES.items():
        assert source.read(name) == data
        with source.open(name) as blob:
            assert blob.size == len(data)
            assert blob.read(0, blob.size) == data
            assert blob.read(50, 7) == data[50:57]


def test_missing_files(source):
    """A missing file is a FileNotFoundError and a KeyError that names it."""
    for name in ("zzz", "a", "a/zzz", "a/b.f32/c", "n" * 300):
        with pytest.raises((MissingFileError, CorruptRunError), match=name), source.open(name):
            pass
    with pytest.raises(KeyError), source.open("zzz"):
        pass


def test_archive_reads_go_on_after_unlink(tmp_path):
    """An archive stays open until it is closed; then reads say so."""
    source = archive(tmp_path)
    os.unlink(tmp_path / "x.plattli")
    assert source.read("a/b.f32") == FILES["a/b.f32"]
    source.close()
    source.close()

    with pytest.raises(ReaderClosedError, match="run 'x' was closed"):
        source.read("a/b.f32")


@pytest.mark.parametrize("data", [b"", b"junk", b"PK\x05\x06" + bytes(10)])
def test_what_is_no_archive(tmp_path, data):
    """Junk, and a zip without a manifest, are no archives."""
    path = tmp_path / "x.plattli"
    path.write_bytes(data)
    with pytest.raises(NotARunError):
        Archive(path)
    assert Archive.at(path) is None
    assert Archive.at(tmp_path) is None
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("sub/plattli.json", "{}")
    with pytest.raises(NotARunError, match=r"has no plattli\.json"):
        Archive(path)


def test_a_header_that_is_not_where_it_should_be(tmp_path):
    """Damage between the table of contents and a member is noticed."""
    source = archive(tmp_path)
    at = source._members["a/b.f32"].header
    source.close()
    data = bytearray((tmp_path / "x.plattli").read_bytes())
    data[at] ^= 0xFF
    (tmp_path / "x.plattli").write_bytes(data)
    source = Archive(tmp_path / "x.plattli")

    with pytest.raises(CorruptRunError, match=r"a/b\.f32"), source.open("a/b.f32"):
        pass
    source.close()


def test_stamp_changes_with_the_manifest(tmp_path):
    """A manifest that was replaced has another stamp, one that is gone has none."""
    source = folder(tmp_path)
    first = source.stamp()
    assert source.stamp() == first
    (tmp_path / "new").write_text('{"a": 1}')
    os.replace(tmp_path / "new", tmp_path / "plattli.json")
    assert source.stamp() != first
    os.unlink(tmp_path / "plattli.json")

    assert source.stamp() is None


def test_successor(tmp_path):
    """Only a folder called plattli has one, once there is an archive beside it."""
    inside = tmp_path / "plattli"
    inside.mkdir()
    source = folder(inside)
    assert source.successor() is None
    archive(tmp_path).close()
    os.rename(tmp_path / "x.plattli", tmp_path / "metrics.plattli")

    found = source.successor()

    assert found.root == tmp_path / "metrics.plattli"
    assert found.successor() is None
    found.close()
    assert folder(tmp_path / "other").successor() is None


def test_a_folder_where_a_file_should_be(tmp_path):
    """What is no file is not read."""
    source = folder(tmp_path)
    (tmp_path / "d.f32").mkdir()
    os.mkfifo(tmp_path / "p.f32")
    for name in ("d.f32", "p.f32"):
        with pytest.raises(CorruptRunError, match="not a file"), source.open(name):
            pass


# ---- archives that are not as writers make them ---------------------------------------------------


def members_of(source):
    """Everything in an archive."""
    return {name: source.read(name) for name in source._members}


def is_usual(source):
    """Whether the directory was read without ``zipfile``."""
    return source._zip is None


def test_what_writers_make_is_read_without_zipfile(tmp_path):
    """So is what other tools make, as long as nothing is packed: directories, extra fields, a comment of a member."""
    source = archive(tmp_path)
    assert is_usual(source)
    assert members_of(source) == FILES
    source.close()
    with zipfile.ZipFile(tmp_path / "x.plattli", "a") as file:
        file.mkdir("a")
        info = zipfile.ZipInfo("more")
        info.extra = struct.pack("<HH4s", 0x7855, 4, b"\0\1\0\1")
        info.comment = b"PK\5\6 is no end here"
        file.writestr(info, b"data")
    source = Archive(tmp_path / "x.plattli")
    assert is_usual(source)
    assert members_of(source) == {**FILES, "a/": b"", "more": b"data"}
    source.close()


def test_a_directory_longer_than_what_is_read_first(tmp_path):
    """It is read in a second piece."""
    names = [f"metric-{number}.f32" for number in range(1000)]
    with zipfile.ZipFile(tmp_path / "x.plattli", "w") as file:
        for name in ["plattli.json", *names]:
            file.writestr(name, name)
    source = Archive(tmp_path / "x.plattli")

    assert is_usual(source)
    assert source.read("metric-0.f32") == b"metric-0.f32"
    assert len(source._members) == 1001
    source.close()


def test_the_last_of_two_members_counts(tmp_path):
    """As it does for zipfile."""
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(tmp_path / "x.plattli", "w") as file:
        for data in ("[1]", "{}", "[]"):
            file.writestr("plattli.json", data)
    source = Archive(tmp_path / "x.plattli")

    assert is_usual(source)
    assert source.read("plattli.json") == b"[]"
    source.close()


def change_comment(path):
    """Give the archive a comment."""
    with zipfile.ZipFile(path, "a") as file:
        file.comment = b"a comment"


def change_prefix(path):
    """Put bytes ahead of it."""
    path.write_bytes(b"#!/bin/something\n" + path.read_bytes())


def change_tail(path):
    """Put bytes behind it that zipfile looks over."""
    path.write_bytes(path.read_bytes()[:-2] + b"\4\0" + b"tail")


def change_method(path):
    """Pack one member."""
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("packed", b"data" * 100, zipfile.ZIP_DEFLATED)


def change_size(path):
    """Spell one member as if it were large; its directory entry stays short."""
    with zipfile.ZipFile(path, "a") as file, file.open("large", "w", force_zip64=True) as member:
        member.write(b"data")


def change_offset(path):
    """Move the directory behind where 32 bits reach, as far as its end says."""
    data = path.read_bytes()
    _, *_, count, length, start, _ = struct.unpack("<4s4H2LH", data[-22:])
    large = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, length, start)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(data) - 22, 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    path.write_bytes(data[:-22] + large + locator + end)


def change_flag(path):
    """Take the flag for UTF-8 from a name that needs it."""
    data = path.read_bytes().replace(b"PK\1\2\x14\3\x14\0\0\x08", b"PK\1\2\x14\3\x14\0\0\0")
    path.write_bytes(data.replace(b"PK\3\4\x14\0\0\x08", b"PK\3\4\x14\0\0\0"))


@pytest.mark.parametrize(
    ("change", "usual"),
    [
        (change_comment, False),
        (change_prefix, False),
        (change_tail, False),
        (change_method, False),
        (change_size, True),
        (change_offset, False),
        (change_flag, False),
    ],
)
def test_any_zip_says_what_zipfile_says(tmp_path, change, usual):
    """Whatever is unusual about an archive, its members are those that zipfile finds."""
    archive(tmp_path).close()
    path = tmp_path / "x.plattli"
    change(path)
    with zipfile.ZipFile(path) as file:
        expected = {name: file.read(name) for name in file.namelist()}
    source = Archive(path)

    assert members_of(source) == expected
    assert is_usual(source) == usual
    for name, data in expected.items():
        with source.open(name) as blob:
            assert blob.read(0, blob.size) == data
    source.close()


@pytest.mark.filterwarnings("ignore:Duplicate")
@given(st.data())
def test_damage_never_makes_up_members(data):
    """Wherever bytes are changed or lost, both ways of reading a directory agree, or there is an error of ours."""
    with tempfile.TemporaryDirectory() as folder:
        archive(Path(folder)).close()
        path = Path(folder) / "x.plattli"
        intact = path.read_bytes()
        damaged = bytearray(intact)
        start = data.draw(st.sampled_from([0, intact.index(b"PK\1\2"), len(intact) - 22]))
        for _ in range(data.draw(st.integers(1, 3))):
            damaged[data.draw(st.integers(start, len(intact) - 1))] = data.draw(st.sampled_from([0, 1, 8, 255]))
        path.write_bytes(damaged[: data.draw(st.sampled_from([len(intact)] * 3 + [len(intact) - 1, start + 9]))])
        try:
            source = Archive(path)
        except NotARunError:
            return
        if is_usual(source):
            with zipfile.ZipFile(path) as file:
                theirs = {info.filename: (info.CRC, info.file_size, info.header_offset) for info in file.infolist()}
            assert {name: (m.crc, m.size, m.header) for name, m in source._members.items()} == theirs
        for name in source._members:
            with contextlib.suppress(PlattliError):
                found = source.read(name)
                assert found in FILES.values()
            with contextlib.suppress(PlattliError), source.open(name) as blob:
                assert len(blob.read(0, blob.size)) <= len(intact)
        source.close()


def test_a_header_of_another_member(tmp_path):
    """A directory that leads to the wrong member is noticed, whatever that holds."""
    archive(tmp_path).close()
    path = tmp_path / "x.plattli"
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\1\2", data.index(b"PK\1\2") + 1)
    assert data[entry + 46 :].startswith(b"a/b.f32")
    data[entry + 42 : entry + 46] = bytes(4)  # the first member
    path.write_bytes(data)
    source = Archive(path)

    with pytest.raises(CorruptRunError, match=r"a/b\.f32 is not what the directory of .*x\.plattli says"):
        source.read("a/b.f32")
    assert source.read("plattli.json") == b"{}"
    source.close()


def test_what_is_no_file_is_no_archive(tmp_path):
    """A folder or a pipe is not waited for."""
    os.mkfifo(tmp_path / "pipe.plattli")
    for path in (tmp_path, tmp_path / "pipe.plattli", tmp_path / "nothing"):
        assert Archive.at(path) is None


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files cannot be counted here")
def test_a_dropped_archive_is_closed(tmp_path):
    """Nobody has to close a reader."""
    before = len(os.listdir("/proc/self/fd"))
    source = archive(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del source
    assert len(os.listdir("/proc/self/fd")) == before
