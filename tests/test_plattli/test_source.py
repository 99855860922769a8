"""Files of a run, in a folder and in an archive."""

from __future__ import annotations

import os
import zipfile

import pytest

from plattli._source import Archive, Folder
from plattli.errors import CorruptRunError, MissingFileError, NotARunError, ReaderClosedError

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
    at = source._zip.getinfo("a/b.f32").header_offset
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
