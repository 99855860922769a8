"""Archives behind URLs: what travels, and what is said when it does not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

from plattli import CompactingWriter, Reader, _remote, is_run, resolve_run_dir
from plattli._format import run_name
from plattli.cli import main
from plattli.errors import (
    CorruptRunError,
    NotARunError,
    PlattliError,
    ReaderClosedError,
    RemoteError,
    UnknownMetricError,
)
from plattli.runinfo import run_info
from tests.lazy import Lazy

fsspec, s3fs, moto_server = Lazy("fsspec"), Lazy("s3fs"), Lazy("moto.server")

# gcsfs, when it is imported, asks for this; else it looks up what kind of bucket it has over gRPC, in TLS
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

MB = 1 << 20
#: What a read may cost beside its bytes: member headers, and the end of the archive, which is read first.
SLACK = 20 << 10
#: How long the metrics of the small run are.
ROWS = 6000


class FileServer(ThreadingHTTPServer):
    """Serves the files of a folder, parts of them too, and counts what it sends."""

    daemon_threads = True

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), FileHandler)
        self.folder = folder
        self.requests = []  # (method, path, Range, bytes of the body)
        #: ranges, head, length: what the server can do
        self.able = {"ranges", "head", "length"}
        self.status = None  # what to answer instead of the file
        self.short = 0  # bytes to leave out
        self.url = f"http://127.0.0.1:{self.server_port}"

    @property
    def sent(self):
        """Bytes that went out as contents."""
        return sum(size for *_, size in self.requests)

    def forget(self):
        """Count anew."""
        self.requests.clear()


class FileHandler(BaseHTTPRequestHandler):
    """Answers one request."""

    def log_message(self, *args):
        """Not on the terminal."""

    def do_HEAD(self):
        """Answer without a body."""
        self.answer(with_body=False)

    def do_GET(self):
        """Answer with the file, or a part of it."""
        self.answer(with_body=True)

    def answer(self, with_body):
        """Answer as well as the server can."""
        server, wanted = self.server, self.headers.get("Range")
        path = server.folder / unquote(urlsplit(self.path).path).lstrip("/")
        status, body = server.status or 200, b""
        if not with_body and "head" not in server.able:
            status = 405
        elif status == 200 and not path.is_file():
            status = 404
        elif status == 200:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                start, stop = 0, size
                if wanted and "ranges" in server.able:
                    status, (start, stop) = 206, span(wanted, size)
                file.seek(start)
                body = file.read(stop - start)[: stop - start - server.short]
        sent = body if with_body else b""
        # before the first byte goes out: from then on the client may go on, and ask for our count
        server.requests.append((self.command, self.path, wanted, len(sent)))
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        if "length" in server.able or status >= 400:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(sent)


def span(header, size):
    """First byte and the one behind the last of a Range header."""
    first, last = re.fullmatch(r"bytes=(\d*)-(\d*)", header).groups()
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size


@pytest.fixture
def server(tmp_path):
    """A server of the files in ``tmp_path``."""
    server = FileServer(tmp_path)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def run(tmp_path):
    """A finished run, ``run7``, of which most is not in what is read first."""
    writer = CompactingWriter(tmp_path / "run7", hotsize=1000, config={"lr": 0.1})
    for step in range(ROWS):
        writer.write(a=step / 4, b=step, **({} if step % 7 else {"j": {"n": [step]}}))
        writer.end_step()
    writer.finish()
    return tmp_path / "run7" / "metrics.plattli"


def columns(path, rows, metrics, compression=zipfile.ZIP_STORED, **more):
    """Make an archive with columns of float32 by hand."""
    spec = {"indices": [{"start": 0, "stop": rows, "step": 1}], "dtype": "f32"}
    files = {f"m{i:02}": np.arange(rows, dtype="<f4") * (i + 1) for i in range(metrics)}
    manifest = dict.fromkeys(files, spec) | {name: spec | {"dtype": "jsonl"} for name in more}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, values in files.items():
            archive.writestr(f"{name}.f32", values.tobytes())
        for name, values in more.items():
            archive.writestr(f"{name}.jsonl", b"".join(json.dumps(value).encode() + b"\n" for value in values))
        archive.writestr("plattli.json", json.dumps({**manifest, "run_rows": rows}))
    return path


def directory_size(path):
    """The bytes behind the last member: the directory and its end."""
    with zipfile.ZipFile(path) as archive:
        return path.stat().st_size - archive.start_dir


# ---- the same as in a file ------------------------------------------------------------------------


def assert_same(remote, local):
    """Everything that can be read of both is equal."""
    assert remote.kind == "zip"
    assert remote.metrics() == local.metrics()
    assert remote.config() == local.config()
    assert remote.approx_max_rows() == local.approx_max_rows()
    for name in local.metrics():
        assert remote.rows(name) == local.rows(name)
        for options in ({}, {"start": 20, "stop": 90}, {"istart": -3}, {"idx": -1}, {"idx": 5, "dtype": "storage"}):
            for ours, theirs in zip(remote.metric(name, **options), local.metric(name, **options), strict=True):
                np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_http(server, run, tmp_path, compression):
    """Stored and compressed archives read behind a URL as they do in a file."""
    with zipfile.ZipFile(run) as old, zipfile.ZipFile(tmp_path / "x.plattli", "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))

    with Reader(f"{server.url}/x.plattli") as remote, Reader(run) as local:
        assert_same(remote, local)
        assert remote.root == f"{server.url}/x.plattli"
        assert remote.metric_values("b", vstart=10, vstop=12).tolist() == [10, 11, 12]
        steps, table = remote.table(["a", "j"], start=0, stop=10)
        assert (steps.tolist(), table["j"].tolist()) == ([0, 7], [{"n": [0]}, {"n": [7]}])
        assert [len(piece[1]) for piece in remote.follow(["a", "b"])] == [ROWS, ROWS]
        with pytest.raises(UnknownMetricError, match=r"'c' \(run 'x'\)"):
            remote.metric("c")


def test_other_protocols(run):
    """Any file system that fsspec knows will do, chains of them too."""
    fsspec.filesystem("memory").pipe_file("/bucket/run7/metrics.plattli", run.read_bytes())

    for url in ("memory://bucket/run7/metrics.plattli", f"file://{run}", f"simplecache::file://{run}"):
        with Reader(url) as remote, Reader(run) as local:
            assert_same(remote, local)
            assert run_name(remote.root) == "run7"


def test_what_is_a_url():
    """Paths with colons are paths; the name of a run is found in its URL."""
    assert _remote.is_url("https://host/x.plattli")
    assert _remote.is_url("simplecache::s3://bucket/x.plattli")
    for path in ("runs/a", "/runs/http://x", "a:b", "C:/x", "://x", b"https://host/x", None):
        assert not _remote.is_url(path)
    assert run_name("https://host/runs/42/metrics.plattli") == "42"
    assert run_name("s3://bucket/metrics.plattli") == "bucket"
    assert run_name("s3://bucket/runs/best.plattli") == "best"


@pytest.fixture(scope="module")
def s3():
    """The options for a stand-in of S3 with a bucket ``runs``."""
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://{host}:{port}"}
    s3fs.S3FileSystem(**options).mkdir("runs")
    yield options
    server.stop()


def test_s3(s3, run, tmp_path, monkeypatch):
    """An object in a bucket reads as a file does, and one metric of it costs its own bytes."""
    fs = s3fs.S3FileSystem(**s3)
    fs.pipe_file("runs/7/metrics.plattli", run.read_bytes())
    big = columns(tmp_path / "big.plattli", 100_000, 12)
    fs.put_file(str(big), "runs/big.plattli")
    with Reader("s3://runs/7/metrics.plattli", storage_options=s3) as remote, Reader(run) as local:
        assert_same(remote, local)
    assert is_run("s3://runs/7/metrics.plattli", storage_options=s3)
    assert not is_run("s3://runs/8/metrics.plattli", storage_options=s3)
    info = run_info("s3://runs/7/metrics.plattli", storage_options=s3)
    assert (info.name, info.params, info.status) == ("7", {"lr": 0.1}, "finished")
    with pytest.raises(NotARunError, match="there is no file at s3://runs/8/x"):
        Reader("s3://runs/8/x", storage_options=s3)
    with pytest.raises(PlattliError, match="s3://nobody/x"):
        Reader("s3://nobody/x", storage_options=s3)

    got = []
    cat = _remote._RangeFile._cat

    def count(self, *span):
        data = cat(self, *span)
        got.append(len(data))
        return data

    monkeypatch.setattr(_remote._RangeFile, "_cat", count)
    with Reader("s3://runs/big.plattli", storage_options=s3) as remote:
        assert len(remote.metric_values("m05")) == 100_000
    assert 400_000 <= sum(got) <= 400_000 + directory_size(big) + SLACK


class GoogleHandler(FileHandler):
    """The two requests of Google's storage that reading makes."""

    def do_GET(self):
        """Answer with what an object is, or with its contents."""
        parts = urlsplit(self.path)
        self.path = unquote(parts.path.partition("/o/")[2])
        path = self.server.folder / self.path
        if parts.path.startswith("/download/"):
            self.answer(with_body=True)
            return
        body = json.dumps(
            {"bucket": "runs", "name": self.path, "size": str(path.stat().st_size)} if path.is_file() else {}
        ).encode()
        self.send_response(200 if path.is_file() else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_gs(server, run):
    """An object of Google's storage reads as a file does."""
    server.RequestHandlerClass = GoogleHandler
    options = {"token": "anon", "endpoint_url": server.url, "skip_instance_cache": True}

    with Reader("gs://runs/run7/metrics.plattli", storage_options=options) as remote, Reader(run) as local:
        assert_same(remote, local)
    assert {wanted is not None for _, _, wanted, _ in server.requests} == {True}


# ---- what travels ---------------------------------------------------------------------------------


def test_one_metric_of_a_big_archive(server, tmp_path):
    """Of 50 MB, reading one metric moves the directory and its 4 MB; one row, next to nothing."""
    path = columns(tmp_path / "big.plattli", MB, 13)
    size, directory = path.stat().st_size, directory_size(path)
    assert size > 50 * MB

    with Reader(f"{server.url}/big.plattli") as remote:
        assert server.sent <= directory + SLACK
        server.forget()
        steps, values = remote.metric("m03")
        assert (len(steps), values[-1]) == (MB, 4.0 * (MB - 1))
        assert 4 * MB <= server.sent <= 4 * MB + SLACK
        server.forget()
        assert remote.metric("m04", idx=-1) == (MB - 1, 5.0 * (MB - 1))
        assert remote.metric_values("m05", start=1000, stop=1999).tolist() == list(range(6000, 12000, 6))
        assert remote.rows("m06") == MB
        assert server.sent <= 4 * 1001 + 3 * 200
        assert len(server.requests) == 5  # of each a header; of two, values
        server.forget()
        remote.refresh()
        assert len(remote.metrics()) == 13
        assert server.requests == []

    server.forget()
    with Reader(f"{server.url}/big.plattli") as remote:
        remote.metric("m12")
    assert 4 * MB <= server.sent <= 4 * MB + directory + SLACK
    assert [method for method, *_ in server.requests] == ["HEAD", "GET", "GET", "GET"]


def test_many_members(server, tmp_path):
    """A directory of thousands of members comes once; small members come in one request."""
    path = columns(tmp_path / "many.plattli", 10, 3000)
    directory = directory_size(path)
    manifest = 3000 * 90

    with Reader(f"{server.url}/many.plattli") as remote:
        assert directory <= server.sent <= directory + SLACK
        assert len(remote.metrics()) == 3000
        assert server.sent <= directory + manifest + 2 * SLACK
        server.forget()
        assert remote.metric_values("m2900").tolist() == [2901.0 * i for i in range(10)]
        assert len(server.requests) == 1
        assert server.sent <= 200


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_json_and_compressed_columns_come_once(server, tmp_path, compression):
    """What cannot be read in parts comes as a whole, in one request, and not twice."""
    values = [{"n": i, "text": "x" * 60} for i in range(30_000)]
    path = columns(tmp_path / "x.plattli", 30_000, 1, compression, j=values)
    with zipfile.ZipFile(path) as archive:
        size = archive.getinfo("j.jsonl").compress_size

    with Reader(f"{server.url}/x.plattli") as remote:
        remote.metrics()
        server.forget()
        assert remote.metric_values("j").tolist() == values
        assert len(server.requests) == 1
        assert size <= server.sent <= size + 300
        if compression == zipfile.ZIP_STORED:  # where the lines are is known from now on
            server.forget()
            assert remote.metric("j", idx=100)[1] == values[100]
            assert server.sent < 1000


def test_an_archive_behind_other_bytes(server, run, tmp_path):
    """Offsets count from where the archive begins."""
    (tmp_path / "x.plattli").write_bytes(b"#!/bin/something\n" + run.read_bytes())

    with Reader(f"{server.url}/x.plattli") as remote, Reader(run) as local:
        assert_same(remote, local)


def test_a_long_comment(server, run, tmp_path):
    """The end of the directory may be further from the end than usual."""
    with zipfile.ZipFile(run, "a") as archive:
        archive.comment = b"c" * 40_000

    with Reader(f"{server.url}/run7/metrics.plattli") as remote, Reader(run) as local:
        assert_same(remote, local)


# ---- servers that cannot do much ------------------------------------------------------------------


@pytest.mark.parametrize("lacks", [{"ranges"}, {"ranges", "head"}, {"ranges", "length"}, {"ranges", "head", "length"}])
def test_a_server_without_ranges(server, run, lacks):
    """The whole file is read, once, and that is said."""
    server.able -= lacks
    with pytest.warns(RuntimeWarning, match=rf"{server.url}/run7/metrics.plattli cannot send a part of a file"):
        remote = Reader(f"{server.url}/run7/metrics.plattli")
    with remote, Reader(run) as local:
        assert_same(remote, local)
    # servers without HEAD are asked by a GET that is given up
    assert sum(1 for method, _, _, sent in server.requests if method == "GET" and sent) <= 2 + ("length" in lacks)


def test_a_server_without_head(server, run):
    """Ranges do without HEAD, as for URLs that are signed for GET."""
    server.able -= {"head"}

    with Reader(f"{server.url}/run7/metrics.plattli?signature=secret") as remote, Reader(run) as local:
        assert_same(remote, local)
        assert remote.root == f"{server.url}/run7/metrics.plattli?…"
    assert run_name(remote.root) == "run7"


# ---- what goes wrong ------------------------------------------------------------------------------


def test_nothing_there(server):
    """A missing file is no run, with the URL in the message."""
    url = f"{server.url}/none.plattli"
    with pytest.raises(NotARunError, match=f"there is no file at {url}") as caught:
        Reader(url)
    assert isinstance(caught.value, FileNotFoundError)
    assert not is_run(url)


@pytest.mark.parametrize("data", [b"", b"hello", b"PK\x05\x06" + bytes(18), bytes(100_000)])
def test_something_else_there(server, tmp_path, data):
    """Any other file is no run either."""
    (tmp_path / "x.plattli").write_bytes(data)
    with pytest.raises(NotARunError, match=f"not a plattli archive: {server.url}/x.plattli"):
        Reader(f"{server.url}/x.plattli")
    assert not is_run(f"{server.url}/x.plattli")


@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_a_server_that_refuses(server, run, status):
    """A server that does not give is not a run that is not there."""
    url = f"{server.url}/run7/metrics.plattli"
    with Reader(url) as remote:
        server.status = status
        for read in (lambda: Reader(url), lambda: is_run(url), lambda: remote.metric("a")):
            with pytest.raises(RemoteError, match=rf"cannot read {url}.*{status}"):
                read()


def test_a_server_that_is_not_there(server, run):
    """A refused connection says so, and hides what the URL is signed with."""
    remote = Reader(f"{server.url}/run7/metrics.plattli")
    server.shutdown()
    server.server_close()

    with pytest.raises(ConnectionError, match=f"cannot read {server.url}/run7/metrics.plattli"):
        remote.metric("a")
    with pytest.raises(RemoteError, match="cannot read http") as caught:
        Reader(f"{server.url}/run7/metrics.plattli?signature=secret".replace("//", "//user:password@"))
    assert "secret" not in str(caught.value)
    assert "password" not in str(caught.value)


def test_fewer_bytes_than_asked_for(server, run):
    """A part that is not the one that was asked for is not taken for it."""
    with Reader(f"{server.url}/run7/metrics.plattli") as remote:
        server.short = 5
        with pytest.raises(RemoteError, match=rf"asked {server.url}.* for its bytes"):
            remote.metric("a")


def test_an_archive_that_was_replaced(server, tmp_path):
    """Another archive at the same URL is noticed, by member headers or checksums, and never mixed in."""
    path = columns(tmp_path / "x.plattli", 100_000, 3)
    with Reader(f"{server.url}/x.plattli") as remote:
        assert remote.metric("m01", idx=1) == (1, 2.0)
        columns(path, 100_000, 2)
        path.write_bytes(path.read_bytes().replace(b"m01", b"n01").ljust(path.stat().st_size * 2))
        with pytest.raises(CorruptRunError, match=r"m01.f32 is not what the directory of .*x.plattli says"):
            remote.metric("m01", idx=1)
        assert remote.metric("m00", idx=1) == (1, 1.0)

        data = bytearray(path.read_bytes())
        data[5000] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptRunError, match="open a new reader"):
            remote.metric("m00")


def test_damaged_directories(server, run, tmp_path):
    """Whatever the bytes are, the answer is data or one of our errors."""
    data = run.read_bytes()
    start = len(data) - directory_size(run)
    rng = np.random.default_rng(7)
    for _ in range(150):
        broken = bytearray(data)
        for at in rng.integers(start if rng.random() < 0.7 else 0, len(data), rng.integers(1, 4)):
            broken[at] = rng.integers(256)
        (tmp_path / "x.plattli").write_bytes(broken)
        try:
            with Reader(f"{server.url}/x.plattli") as remote:
                for name in remote.metrics():
                    remote.metric(name)
                    remote.metric(name, idx=-1)
        except PlattliError:
            pass


def test_a_member_that_would_lie_behind_the_end(server, tmp_path):
    """A place where there is nothing is not asked for."""
    path = columns(tmp_path / "x.plattli", 10, 2)
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\x01\x02")  # of the first member; where its header is stands at byte 42
    data[entry + 42 : entry + 46] = (2**30).to_bytes(4, "little")
    path.write_bytes(data)

    with Reader(f"{server.url}/x.plattli") as remote:
        server.forget()
        with pytest.raises(CorruptRunError, match=r"m00.f32 has no header where http.*x.plattli says it is"):
            remote.metric("m00")
        assert server.requests == []


def test_closed(server, run):
    """A closed reader says so, as that of a file does."""
    remote = Reader(f"{server.url}/run7/metrics.plattli")
    remote.close()
    remote.close()

    with pytest.raises(ReaderClosedError, match="run7"):
        remote.metric("a")


def test_arguments_that_make_no_sense(tmp_path, run):
    """A URL is no folder, and a path needs no options."""
    with pytest.raises(ValueError, match="can only be an archive, not a folder: http://x/y"):
        Reader("http://x/y", kind="dir")
    with pytest.raises(ValueError, match="storage_options are for URLs"):
        Reader(run, storage_options={"anon": True})
    with pytest.raises(RemoteError, match="nonsense://x"):
        Reader("nonsense://x")
    assert resolve_run_dir("http://x/y") is None


@pytest.mark.parametrize(
    ("hidden", "url"),
    [("fsspec", "https://host/x.plattli"), ("aiohttp", "https://host/x.plattli"), ("s3fs", "s3://bucket/x.plattli")],
)
def test_missing_packages(hidden, url):
    """Without the packages for a URL, the error names the extra that brings them; nothing else needs them."""
    code = (
        f"import sys; sys.modules[{hidden!r}] = None\n"
        "import plattli\n"
        "assert not {'fsspec', 'aiohttp'} & {n for n, m in sys.modules.items() if m is not None}\n"
        f"try: plattli.Reader({url!r})\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert url in done.stdout
    assert "pip install 'plattli-loggers[remote]'" in done.stdout


# ---- the commands ---------------------------------------------------------------------------------


def test_commands(server, run, capsys):
    """``show`` and ``plot`` take URLs; one that leads nowhere is told like a path that does."""
    url = f"{server.url}/run7/metrics.plattli"

    assert main(["show", url, "--json", "-m", "b"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["path"], shown["status"], shown["params"]) == (url, "finished", {"lr": 0.1})
    assert shown["metrics"]["b"]["last"] == ROWS - 1
    assert main(["plot", url, "-m", "a"]) == 0
    assert "run7" in capsys.readouterr().out
    assert main(["show", f"{server.url}/none.plattli", url, "-m", "b"]) == 1
    out, err = capsys.readouterr()
    assert f"there is no file at {server.url}/none.plattli" in err
    assert url in out


def test_no_warning_in_ordinary_use(server, run):
    """Reading a run behind a URL is quiet to the end of the process."""
    code = (
        "import plattli\n"
        f"with plattli.Reader('{server.url}/run7/metrics.plattli') as reader: print(len(reader.metric('a')[0]))"
    )
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, check=True)

    assert (done.stdout, done.stderr) == (f"{ROWS}\n", "")
