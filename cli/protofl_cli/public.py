"""Names for packages that add commands to ``protofl``. All other modules here may change.

A command is a function with Typer's annotations. These names give it the options and the output of
protofl's own commands: ``--json``, ``--debug``, tables, and messages after Ctrl-C.
"""

from __future__ import annotations

from protofl_cli.interrupts import interrupted
from protofl_cli.json.json_output import Json, pair_values, print_json, prints_json
from protofl_cli.options.groups import group_of
from protofl_cli.options.options import Debug, TrustCode, option
from protofl_cli.options.overwriting import Force, checked
from protofl_cli.screens.render import line, note, pairs, table, waiting

__all__ = [
    "Debug",
    "Force",
    "Json",
    "TrustCode",
    "checked",
    "group_of",
    "interrupted",
    "line",
    "note",
    "option",
    "pair_values",
    "pairs",
    "print_json",
    "prints_json",
    "table",
    "waiting",
]
