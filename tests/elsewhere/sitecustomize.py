"""Simulate a system with fewer features: remove from Python what Windows and macOS lack.

Used as ``PYTHONPATH=tests/elsewhere pytest``; every process that the tests start inherits it.
Missing: ``fcntl``, ``resource``, ``pwd`` and ``grp`` for protofl and its tests, forks, the choice
of cores, the alarm signal, ``/proc``, symbolic links and named pipes.
As on Windows, a file that this process has open or mapped cannot be removed or replaced, a folder
cannot be opened, and no name may contain one of ``<>:"|?*``.
"""

import builtins
import errno
import io
import os
import signal
import sys

import filelock  # noqa: F401 - imported before the patches: it has code for each system

MODULES = {"fcntl", "resource", "pwd", "grp"}
OURS = ("protofl", "test", "conftest")
_FUNCTIONS = "fork forkpty sched_getaffinity sched_setaffinity sched_setscheduler mkfifo O_NOFOLLOW"
_SIGNALS = "SIGALRM SIGHUP SIGUSR1 SIGUSR2 ITIMER_REAL setitimer getitimer alarm"

_open, _os_open, _import = io.open, os.open, builtins.__import__
_listdir, _readlink, _replace, _rename = os.listdir, os.readlink, os.replace, os.rename
_unlink, _mkdir = os.unlink, os.mkdir


def _imported(name, globals=None, locals=None, fromlist=(), level=0):
    if name in MODULES and str((globals or {}).get("__name__", "")).startswith(OURS):
        raise ImportError(f"no module named {name!r} on this system")
    return _import(name, globals, locals, fromlist, level)


def _check_name(path):
    if isinstance(path, str | os.PathLike) and not os.fspath(path).startswith("/dev/"):
        name = os.fsdecode(path)
        if set(name) & set('<>:"|?*'):
            raise OSError(errno.EINVAL, "a name has a character that Windows does not take", name)


def _check_proc(path):
    if isinstance(path, str | os.PathLike) and os.fsdecode(path).startswith("/proc") and _ours():
        raise FileNotFoundError(errno.ENOENT, "no such file", os.fsdecode(path))


def _ours():
    """Return True if the caller is protofl or a test. Libraries may still read /proc."""
    frame = sys._getframe(3)
    while frame.f_globals.get("__name__") == "pathlib":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).startswith(OURS)


def _opened(file, mode="r", *args, **kwargs):
    _check_proc(file)
    if set(mode) & set("wax"):
        _check_name(file)
    return _open(file, mode, *args, **kwargs)


def _os_opened(path, flags, *args, **kwargs):
    _check_proc(path)
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "a folder cannot be opened", path)
    if flags & os.O_CREAT:
        _check_name(path)
    return _os_open(path, flags, *args, **kwargs)


def _in_use():
    files = set()
    for number in _listdir("/proc/self/fd"):
        try:
            files.add(_readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    with _open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        files.update(line.split(maxsplit=5)[5].strip() for line in lines if "/" in line)
    return files


def _check_free(path, dir_fd=None):
    if dir_fd is None and os.path.realpath(os.fsdecode(path)) in _in_use():
        raise PermissionError(errno.EACCES, "another open file has it", os.fsdecode(path))


def _unlinked(path, *, dir_fd=None):
    if sys._getframe(1).f_globals.get("__name__") != "tempfile":  # tempfile handles Windows itself
        _check_free(path, dir_fd)
    return _unlink(path, dir_fd=dir_fd)


def _moved(move):
    def moved(source, target, **kwargs):
        _check_name(target)
        for path in (source, target):
            _check_free(path)
        return move(source, target, **kwargs)

    return moved


def _made(path, *args, **kwargs):
    _check_name(path)
    return _mkdir(path, *args, **kwargs)


def _no_link(*args, **kwargs):
    raise OSError("symbolic link privilege not held")


for _name in _FUNCTIONS.split():
    if hasattr(os, _name):
        delattr(os, _name)
for _name in _SIGNALS.split():
    if hasattr(signal, _name):
        delattr(signal, _name)
builtins.__import__, builtins.open, io.open, os.open = _imported, _opened, _opened, _os_opened
os.unlink = os.remove = _unlinked
os.replace, os.rename, os.mkdir, os.symlink = _moved(_replace), _moved(_rename), _made, _no_link
