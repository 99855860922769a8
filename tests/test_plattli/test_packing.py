"""Archives of folders."""

from __future__ import annotations

import os
import zipfile

from plattli import _packing


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
