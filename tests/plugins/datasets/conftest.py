"""Shared fixtures for the tests of data sets."""

from __future__ import annotations

import functools
import http.server
import threading

import pytest


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Provide a folder and the address where this machine serves it."""
    monkeypatch.setenv("no_proxy", "*")
    folder = tmp_path / "site"
    folder.mkdir()
    handler = functools.partial(_Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()
