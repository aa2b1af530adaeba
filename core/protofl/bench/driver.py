"""The driver's end of a process that runs one side's loop."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from protofl.errors import HostFailure, ProtoflError
from protofl.machine.interpreter import fresh_interpreter


class Side:
    """The driver's end of a `protofl.bench.side` process."""

    def __init__(
        self, name: str, options: dict[str, Any], file: Path | None, folder: Path, *, double: bool
    ) -> None:
        self.name = name
        begin = time.perf_counter()
        command, environment = fresh_interpreter("protofl.bench.side")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            encoding="utf-8",
        )
        values = {"options": options, "file": file and str(file), "folder": str(folder)}
        try:
            self.about = self._exchange({**values, "double": double})
        except BaseException:
            self.close()
            raise
        self.launch = time.perf_counter() - begin
        """Seconds until the loop was ready: a fresh interpreter, imports, data, hosts."""

    def ask(self, op: str, **values: Any) -> dict[str, Any]:  # noqa: ANN401 - scalars
        """Have an operation done.

        Raises:
            ProtoflError: What went wrong there.
        """
        return self._exchange({"op": op, **values})

    def _exchange(self, values: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(values) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            code = self._process.wait()
            raise HostFailure(
                f"the process of {self.name} ended with code {code} in the middle of the measure",
                do="code -9 often means that memory ran out: try fewer --clients",
            )
        answer: dict[str, Any] = json.loads(line)
        if "failure" in answer:
            raise ProtoflError.from_values(answer["failure"])
        return answer

    def close(self) -> None:
        """End the process; its workers end with it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            self.kill()
        self._process.stdout.close()

    def kill(self) -> None:
        """End it in the middle of its work."""
        self._process.kill()
        self._process.wait()
