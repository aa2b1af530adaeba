"""What the documentation's tests share: the pages, whole and in their parts."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "_build"))

FENCE = re.compile(r"^```([a-z]*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks_of(path, language):
    """The code blocks of a page in one language."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return [code for found, code in FENCE.findall(text) if found == language]


def commands_of(blocks):
    """The words of every ``protofl …`` line, without comments and with continued lines joined."""
    import shlex

    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        start = line.find("protofl ")
        if start == 0 or line[:start].endswith("/"):
            yield shlex.split(line[start:], comments=True)[1:]


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """A cache of data sets, so that digits are decoded once."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(autouse=True)
def _one_thread_in_a_folder_of_its_own(tmp_path, monkeypatch):
    import torch

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROTOFL_BLOCK", raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
