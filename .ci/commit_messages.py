"""Name the commits whose subject is longer than 72 characters or whose message has no body.

python .ci/commit_messages.py          the commits since .ci/baseline
python .ci/commit_messages.py FILE     one message, as git's hook commit-msg passes it
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from code_lines import base, git

LONGEST = 72


def faults(message: str) -> list[str]:
    """Return what is wrong with a commit message; empty if nothing is."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject, *rest = lines or [""]
    found = []
    if len(subject) > LONGEST:
        found.append(f"the subject has {len(subject)} characters, at most {LONGEST} are allowed")
    if rest and rest[0].strip():
        found.append("the second line is not empty")
    if not any(line.strip() for line in rest[1:]):
        found.append("there is no body, which says why")
    return found


def since(commit: str) -> list[str]:
    """Return a line for each fault of a commit after this one, without merges."""
    lines = []
    for one in git("rev-list", "--no-merges", f"{commit}..HEAD").split():
        message = git("show", "-s", "--format=%B", one)
        lines += [f"{one[:8]} {message.splitlines()[0][:60]}: {fault}" for fault in faults(message)]
    return lines


def main() -> None:
    """Print the faults. Only a message that can still be changed is refused."""
    if len(sys.argv) > 1:
        found = faults(Path(sys.argv[1]).read_text(encoding="utf-8"))
        if found:
            sys.exit("commit message: " + "; ".join(found))
        return
    try:
        commit = base()
        found = since(commit) if commit else []
    except subprocess.CalledProcessError as error:
        sys.exit(str(error))
    print(f"commit messages since {commit[:8] if commit else 'the first'}: {len(found)} faults")
    print(*found, sep="\n")


if __name__ == "__main__":
    main()
