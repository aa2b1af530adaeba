"""Tests of the parts in which CI runs the slow tests."""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest
import rotation

ROOT = Path(__file__).parents[2]

TESTS = """
import pytest

@pytest.fixture(scope="module", params=range(20))
def shared(request):
    return request.param

def test_one(shared): ...
def test_other(shared): ...

@pytest.mark.always
def test_lost_data(): ...
"""


@pytest.fixture
def chosen(tmp_path, monkeypatch):
    """Provide ``chosen(part)``: the tests of a file that run with ``--part``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = always")
    (tmp_path / "test_toys.py").write_text(textwrap.dedent(TESTS))

    class Seen:
        def pytest_collection_finish(self, session):
            self.found = {item.name for item in session.items}

    def ask(part):
        seen = Seen()
        # In the same process and for a few moments: it must not see this session's plugins.
        words = ["--collect-only", "-qqq", "-p", "no:cacheprovider", "-p", "no:xdist"]
        words += ["-p", "no:unraisableexception"]  # collects garbage five times at the end
        code = pytest.main([*words, "--part", part], plugins=[seen, rotation])
        return code, getattr(seen, "found", None)

    return ask


def test_every_test_is_in_one_part_and_those_that_guard_against_lost_data_in_all(chosen):
    parts = [chosen(f"{number}/4")[1] for number in (1, 2, 3, 4)]
    assert all("test_lost_data" in part for part in parts)
    rest = [part - {"test_lost_data"} for part in parts]
    assert sum(map(len, rest)) == len(set.union(*rest)) == 40
    assert all(rest)


def test_tests_that_share_a_fixture_are_in_the_same_part(chosen):
    for number in (1, 2, 3, 4):
        _, found = chosen(f"{number}/4")
        ones, others = ({n for n in found if name in n} for name in ("test_one", "test_other"))
        assert {n.partition("[")[2] for n in ones} == {n.partition("[")[2] for n in others}


@pytest.mark.parametrize("text", ["5/4", "0/4", "4", "a/4", "1/0"])
def test_an_unknown_part_is_refused(chosen, text, capsys):
    code, _ = chosen(text)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert f"--part '{text}': expected N/PARTS" in capsys.readouterr().err


@pytest.mark.skipif(not shutil.which("bash"), reason="CI runs in bash")
@pytest.mark.parametrize("words", [["--part", "5"], ["--part"], ["--every"]])
def test_ci_refuses_an_unknown_part_before_it_starts(words):
    done = subprocess.run(
        ["bash", ROOT / ".ci" / "run", *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr == "usage: .ci/run [--all | --part 1..4]\n"


def test_each_part_of_ci_has_checks_beside_the_slow_tests():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    _, *parts = script.split("\nif chosen ")
    assert [part[0] for part in parts] == ["1", "2", "3", "4"]
    assert all("/bin/pytest" in part for part in parts)


@pytest.mark.parametrize("file", [".ci/run", ".github/workflows/tests.yml"])
def test_ci_names_tests_that_exist(file):
    found = re.findall(r"(?<![\w/$])(?:tests|plugins)/[\w./{,}]+", (ROOT / file).read_text("utf-8"))
    paths = [path for word in found for path in spelled_out(word)]
    assert paths and [path for path in paths if not (ROOT / path).exists()] == []


def spelled_out(word):
    """Return the words that a shell makes of ``a{b,c}d``."""
    before, opening, rest = word.partition("{")
    between, _, after = rest.partition("}")
    each = between.split(",") if opening else [""]
    return [before + one + after for one in each]
