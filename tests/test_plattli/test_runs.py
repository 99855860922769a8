"""What is a run, and where its files are."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from plattli import Reader, is_run, is_run_dir, resolve_run_dir
from plattli.errors import NotARunError


def folder(path, manifest="{}"):
    """A metric folder."""
    path.mkdir(parents=True)
    (path / "plattli.json").write_text(manifest)


def archive(path, name="plattli.json"):
    """An archive."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(name, "{}")


def make_root(root):
    folder(root / "plattli")


def make_itself(root):
    folder(root)


def make_both_folders(root):
    folder(root)
    folder(root / "plattli")


def make_archive(root):
    archive(root / "metrics.plattli")


def make_archive_and_folder(root):
    archive(root / "metrics.plattli")
    folder(root / "plattli")


def make_archive_in_folder(root):
    archive(root / "metrics.plattli")
    (root / "plattli.json").write_text("{}")


def make_junk_and_folder(root):
    folder(root / "plattli")
    (root / "metrics.plattli").write_text("junk")


def make_two_folders(root):
    folder(root / "plattli")
    (root / "metrics.plattli").mkdir()


def make_zip_file(root):
    archive(root)


def make_other_zip(root):
    archive(root, name="sub/plattli.json")


def make_truncated_zip(root):
    archive(root)
    root.write_bytes(root.read_bytes()[:-5])


def make_junk_file(root):
    root.write_text("junk")


def make_named_archive_in_folder(root):
    archive(root / "foo.plattli")


def make_no_manifest(root):
    (root / "plattli").mkdir(parents=True)


def make_manifest_folder(root):
    (root / "plattli" / "plattli.json").mkdir(parents=True)


def make_nothing(root):
    pass


def make_parent(root):
    folder(root / "run" / "plattli")


def make_dangling_link(root):
    root.symlink_to("nowhere")


def make_link(root):
    folder(root.parent / "real" / "plattli")
    root.symlink_to("real")


@pytest.mark.parametrize(
    ("make", "resolved", "opened"),
    [
        (make_root, "x/plattli", "x/plattli"),
        (make_itself, "x", "x"),
        (make_both_folders, "x", "x"),
        (make_archive, None, "x/metrics.plattli"),
        (make_archive_and_folder, "x/plattli", "x/metrics.plattli"),
        (make_archive_in_folder, "x", "x/metrics.plattli"),
        (make_junk_and_folder, "x/plattli", "x/plattli"),
        (make_two_folders, "x/plattli", "x/plattli"),
        (make_zip_file, None, "x"),
        (make_other_zip, None, None),
        (make_truncated_zip, None, None),
        (make_junk_file, None, None),
        (make_named_archive_in_folder, None, None),
        (make_no_manifest, None, None),
        (make_manifest_folder, None, None),
        (make_nothing, None, None),
        (make_parent, None, None),
        (make_dangling_link, None, None),
        (make_link, "real/plattli", "real/plattli"),
    ],
)
def test_discovery(tmp_path, monkeypatch, make, resolved, opened):
    """The helpers and the reader agree on what a path is, absolute, relative or under ``~``."""
    tmp_path = tmp_path.resolve()
    root = tmp_path / "x"
    make(root)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (root, str(root), "x", "~/x"):
        assert resolve_run_dir(path) == (resolved and tmp_path / resolved)
        assert is_run_dir(path) == (resolved is not None)
        assert is_run(path) == (opened is not None)
        if opened is None:
            with pytest.raises(NotARunError, match="not a plattli run"):
                Reader(path)
        else:
            with Reader(path) as reader:
                assert reader.root == tmp_path / opened
                assert reader.kind == ("dir" if (tmp_path / opened).is_dir() else "zip")


@pytest.mark.parametrize("helper", [is_run, is_run_dir, resolve_run_dir, Reader])
@pytest.mark.parametrize("path", [None, 7, b"x", ["x"]])
def test_what_is_no_path(helper, path):
    """Anything but text and path objects is a TypeError."""
    with pytest.raises(TypeError):
        helper(path)


def test_path_objects(tmp_path):
    """Any path object will do."""

    class Somewhere(os.PathLike):
        def __fspath__(self):
            return str(tmp_path / "run")

    folder(tmp_path / "run" / "plattli")

    assert is_run(Somewhere())
    assert isinstance(resolve_run_dir(Somewhere()), Path)
