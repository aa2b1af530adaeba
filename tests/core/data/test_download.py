"""Tests of downloads from a server on this machine."""

from __future__ import annotations

import hashlib
import http.server
import os
import threading

import pytest

from protofl import UsageError
from protofl.datasets import download

CONTENT = bytes(range(256)) * 10_000
MD5 = hashlib.md5(CONTENT).hexdigest()
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        if self.path == "/missing.zip":
            self.send_error(404)
            return
        self.send_response(200)
        if self.path != "/unsized.zip":
            self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[:-1000] if self.path == "/short.zip" else CONTENT)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.asked = []
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("sums", [{}, {"md5": MD5}, {"sha256": SHA256.upper()}])
@pytest.mark.parametrize("name", ["a.zip", "unsized.zip"])
def test_download(tmp_path, server, sums, name):
    path = tmp_path / "new" / "a.zip"
    assert download(f"{server.url}/{name}", path, **sums) == path
    assert path.read_bytes() == CONTENT and os.listdir(path.parent) == ["a.zip"]


def test_a_file_that_is_there_is_not_fetched_again(tmp_path, server):
    path = tmp_path / "a.zip"
    path.write_bytes(CONTENT)
    download(f"{server.url}/a.zip", path, md5=MD5)
    download(f"{server.url}/a.zip", path)
    assert server.asked == []


def test_a_file_with_another_checksum_is_replaced(tmp_path, server):
    path = tmp_path / "a.zip"
    path.write_bytes(b"half")
    download(f"{server.url}/a.zip", path, md5=MD5)
    assert path.read_bytes() == CONTENT


def failing(url, path, **options):
    with pytest.raises(UsageError) as error:
        download(url, path, **options)
    assert not any(name.endswith(".part") for name in os.listdir(path.parent))
    return error.value


def test_a_wrong_checksum(tmp_path, server):
    error = failing(f"{server.url}/a.zip", tmp_path / "a.zip", md5="0" * 32)
    assert f"its md5 is {MD5}, not {'0' * 32}" in error.what
    assert os.listdir(tmp_path) == []


def test_a_wrong_checksum_keeps_the_file_that_was_there(tmp_path, server):
    (tmp_path / "a.zip").write_bytes(b"old")
    failing(f"{server.url}/a.zip", tmp_path / "a.zip", sha256="0" * 64)
    assert (tmp_path / "a.zip").read_bytes() == b"old"


def test_a_transfer_that_breaks_off(tmp_path, server):
    error = failing(f"{server.url}/short.zip", tmp_path / "a.zip")
    assert f"broken off after {len(CONTENT) - 1000} of {len(CONTENT)} bytes" in error.what


def test_the_server_refuses(tmp_path, server):
    error = failing(f"{server.url}/missing.zip", tmp_path / "a.zip")
    assert "404 Not Found" in error.what and f"{server.url}/missing.zip" in error.near


def test_no_connection(tmp_path, server):
    server.server_close()
    error = failing(f"{server.url}/a.zip", tmp_path / "a.zip")
    assert "download failed: " in error.what and server.url in error.near
    assert str(tmp_path / "a.zip") in error.do


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as caught:
        download("http://127.0.0.1:9/a.zip", tmp_path / "file" / "a.zip")
    assert "--data-dir" in caught.value.do


def test_file_addresses(tmp_path, capsys):
    (tmp_path / "source").write_bytes(CONTENT)
    download((tmp_path / "source").as_uri(), tmp_path / "copy", sha256=SHA256)
    assert (tmp_path / "copy").read_bytes() == CONTENT
    out, err = capsys.readouterr()
    assert (out, err) == ("", "downloading copy\n")
