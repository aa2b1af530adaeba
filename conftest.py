"""Fixtures of all tests. Tests run in parallel, so they and their subprocesses use one thread."""

from __future__ import annotations

import copy
import functools
import gc
import importlib.metadata
import os
import pathlib
import signal
import sys

import pytest

# --part; which tests see a GPU; a simulated one for the others.
pytest_plugins = ["rotation", "devices", "simulated_gpu"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs
    signal.signal(signal.SIGINT, signal.default_int_handler)

SATELLITES = ("flower", "privacy", "ray")
"""Parts of the names of distributions in ``plugins``."""


def is_installed(satellite):
    """Return True if a distribution of `SATELLITES` is installed."""
    try:
        return bool(importlib.metadata.version(f"protofl-{satellite}"))
    except importlib.metadata.PackageNotFoundError:
        return False


missing = [satellite for satellite in SATELLITES if not is_installed(satellite)]
collect_ignore_glob = [f"plugins/protofl_{satellite}/*" for satellite in missing]


def pytest_report_header():
    """Say which tests are left out, because their distribution is not installed."""
    return [f"left out: pip install ./plugins/protofl_{satellite}" for satellite in missing]


for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Tests start dozens of processes, and each would compile the same modules again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(scope="session", autouse=True)
def _put_together_once():
    """Build all commands once, because building them takes longer than most commands take."""
    import typer.testing

    from protofl_cli.options import groups

    made_once = functools.cache(groups.whole_command)

    def whole_command(*given):
        """Return a copy, because ``--help-all`` shows parameters that were hidden."""
        command = copy.copy(made_once(*given))
        command.params = [copy.copy(parameter) for parameter in command.params]
        return command

    with pytest.MonkeyPatch.context() as patch:
        once = functools.cache(typer.main.get_command)
        patch.setattr(typer.testing, "_get_command", once)
        patch.setattr(groups, "whole_command", whole_command)
        yield


def pytest_collection_modifyitems(items):
    """Skip tests with the marker ``satellites``, if a distribution of `SATELLITES` is missing."""
    skip = pytest.mark.skip(reason=f"not installed: {', '.join(missing)} of plugins")
    for item in items if missing else ():
        if item.get_closest_marker("satellites"):
            item.add_marker(skip)


def pytest_configure(config):
    """Cache entry points by the folders of ``sys.path``: each plan and many parameters read them.

    A path is not enough: pytest removes folders of passed tests, and a later test may get the name.
    """
    whole = importlib.metadata.entry_points

    def folder(path):
        found = os.stat(path) if os.path.exists(path) else None
        return path, found and (found.st_ino, found.st_mtime_ns)

    class Installed:
        def __init__(self, folders):
            self.select, self.groups = functools.cache(whole().select), whole().groups

    installed = functools.cache(Installed)

    def entry_points(**which):
        found = installed(tuple(map(folder, sys.path)))
        return found.select(**which) if which else found

    patch = pytest.MonkeyPatch()
    patch.setattr(importlib.metadata, "entry_points", entry_points)
    config.add_cleanup(patch.undo)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config, log):
    """Give the quick tests of a file to one process, so that their fixtures are made once.

    The slow ones of a file may take minutes, and are shared out one by one.
    """
    if config.getoption("markexpr") == "not slow" and config.getoption("dist") == "load":
        from xdist.scheduler import LoadFileScheduling

        return LoadFileScheduling(config, log)
    return None


def pytest_collection_finish():
    """Spare the garbage collector the thousands of collected tests, which stay."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    """Let the collector free them again; otherwise Triton lists leaks when Python ends."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def _without_links(tmp_path_factory):
    """Skip tests that create a symbolic link if the system or the user's rights forbid it."""
    place = tmp_path_factory.mktemp("links")
    try:
        (place / "link").symlink_to(place)
    except OSError:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pathlib.Path, "symlink_to", _no_link)
            yield
    else:
        yield


def _no_link(*args):
    if sys._getframe(1).f_globals["__name__"].startswith("_pytest."):
        raise OSError("no symbolic links")
    pytest.skip("no symbolic links")


@pytest.fixture(scope="session", autouse=True)
def _data_of_this_session(tmp_path_factory):
    """Keep data sets in a folder of this session, because the home may be full or read-only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROTOFL_DATA_DIR", str(tmp_path_factory.mktemp("data-sets")))
        yield


@pytest.fixture(scope="session")
def few(tmp_path_factory):
    """Return a value for ``--dataset``: 150 images in ten classes."""
    import numpy as np  # after the limit of threads above

    path = tmp_path_factory.mktemp("few") / "few.npz"
    y = np.arange(150) % 10
    noise = np.random.default_rng(0).integers(0, 100, (len(y), 8, 8))
    noise[np.arange(len(y)), y % 8, y // 8] += 155
    np.savez(path, x_train=noise.astype(np.uint8), y_train=y)
    return f"npz:{path}"


@pytest.fixture
def toys(monkeypatch):
    """Install the toy data set and models of `runtime_toys` for a test."""
    from runtime_toys import install

    install(monkeypatch)


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Train fedproto for two trials of three rounds, evaluated every second round.

    Tests that change the run copy it.
    """
    from runtime_toys import install, train

    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        return train(
            "fedproto",
            tmp_path_factory.mktemp("made") / "run",
            rounds=3,
            trials=2,
            eval_every=2,
            metrics="macro-f1",
            progress=False,
        )
