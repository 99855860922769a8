"""Archives of folders."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import zipfile

import pytest

from plattli import _fs, _packing, _source
from plattli.errors import CorruptRunError

FILES = {"a/x.f32": bytes(range(256)), "a/b/c.u8": b"", "a.f32": b"1234567", "plattli.json": b"{}", "\u00fc": b"8"}


def make_archive(path, files, kind=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", kind) as archive:
        archive.mkdir("empty")
        for name, data in files.items():
            archive.writestr(name, data)


def contents(folder):
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_an_archive_holds_the_files_as_they_are(tmp_path, monkeypatch):
    """Contents, names, times and modes, in the order of paths, in however many pieces a file is copied."""
    monkeypatch.setattr(_packing, "_CHUNK", 7)
    folder = tmp_path / "plattli"
    files = {"a/x.f32": bytes(range(256)), "a-b.f32": b"", "a.f32": b"1234567", "plattli.json": b"{}", "\u00fc": b"8"}
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o640)
        os.utime(path, (0, 1_700_000_000))
    os.utime(folder / "a.f32", (0, 0))  # before the first year that a zip can hold
    (folder / "link").symlink_to("a.f32")
    (folder / "nowhere").symlink_to("nothing")

    path = _packing.bundle(folder, tmp_path, {"plattli.json": lambda: b"[]", "a-b.f32": None})

    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["a/x.f32", "a.f32", "link", "plattli.json", "\u00fc"]
        found = {name: archive.read(name) for name in archive.namelist()}
        infos = archive.infolist()
    wanted = files | {"plattli.json": b"[]", "link": files["a.f32"]}
    del wanted["a-b.f32"]
    assert found == wanted
    assert {info.compress_type for info in infos} == {zipfile.ZIP_STORED}
    assert infos[0].external_attr >> 16 & 0o777 == 0o640
    assert [info.date_time[0] for info in infos[:2]] == [2023, 1980]


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_folder_holds_the_files_of_the_archive(tmp_path, monkeypatch, kind):
    """In however many pieces they come; the archive is gone then."""
    monkeypatch.setattr(_source.Bundle.pieces, "__defaults__", (7,))
    make_archive(tmp_path / "metrics.plattli", FILES, kind)
    _packing.unpack(tmp_path, "run")
    assert contents(tmp_path / "plattli") == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["plattli"]


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_damaged_archive_stays(tmp_path, kind):
    """Nothing takes its place."""
    path = tmp_path / "metrics.plattli"
    make_archive(path, {**FILES, "damaged.u8": b"which bytes are these"}, kind)
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo("damaged.u8").header_offset + 30 + len("damaged.u8") + 5
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRunError, match=r"damaged\.u8"):
        _packing.unpack(tmp_path, "run")
    assert path.read_bytes() == data
    assert not (tmp_path / "plattli").exists()


@pytest.mark.parametrize("count", [3, _fs._MANY_FILES])
def test_an_archive_goes_when_its_files_would_survive_a_power_loss(tmp_path, monkeypatch, count):
    """Each is synced, unless everything is at once, which few files are not worth."""
    files = {f"group/{i}.u8": b"1" for i in range(count)} | {"plattli.json": b"{}"}
    for is_at_once in (False, True):
        root = tmp_path / str(is_at_once)
        root.mkdir()
        archive = root / "metrics.plattli"
        make_archive(archive, files)
        synced = set()
        asked = []

        def sync(fd, synced=synced, archive=archive):
            assert archive.exists()
            synced.add(os.fstat(fd).st_ino)

        def sync_all(fd, asked=asked, archive=archive, is_at_once=is_at_once):
            assert len(contents(archive.parent / ".plattli-extracting")) == count + 1
            asked.append(fd)
            return is_at_once

        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(_fs, "_sync_file_system", sync_all)
        _packing.unpack(root, "run")
        assert contents(root / "plattli") == files
        are_many = count >= _fs._MANY_FILES
        assert len(asked) == are_many
        each = {path.stat().st_ino for path in (root / "plattli").rglob("*") if path.is_file()}
        assert each <= synced if not (are_many and is_at_once) else not each & synced


def test_an_archive_stays_when_its_files_were_not_written(tmp_path, monkeypatch):
    """The disk says so at last when everything is to be safe."""

    def fail(fd):
        raise OSError(errno.EIO, "no more")

    make_archive(tmp_path / "metrics.plattli", {f"{i}.u8": b"1" for i in range(_fs._MANY_FILES)} | FILES)
    monkeypatch.setattr(_fs, "_sync_file_system", fail)
    with pytest.raises(OSError, match="no more"):
        _packing.unpack(tmp_path, "run")
    assert (tmp_path / "metrics.plattli").exists()
    assert not (tmp_path / "plattli").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="syncfs is Linux's")
def test_only_file_systems_that_keep_the_promise_are_asked_for_everything_at_once(tmp_path, monkeypatch):
    """As stat(1) tells them apart; and only of a kernel that tells of failures."""
    kind = int(subprocess.run(["stat", "-f", "-c", "%t", tmp_path], capture_output=True, check=True).stdout, 16)
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        monkeypatch.setattr(_fs, "_SYNCED_AT_ONCE", frozenset((kind,)))
        monkeypatch.setattr(_fs, "_LINUX_THAT_TELLS", (0, 0))
        assert _fs._sync_file_system(fd)
        monkeypatch.setattr(_fs, "_SYNCED_AT_ONCE", frozenset((kind + 1,)))
        assert not _fs._sync_file_system(fd)
        monkeypatch.setattr(_fs, "_SYNCED_AT_ONCE", frozenset((kind,)))
        monkeypatch.setattr(_fs, "_LINUX_THAT_TELLS", (1 << 30, 0))
        assert not _fs._sync_file_system(fd)
    finally:
        os.close(fd)
