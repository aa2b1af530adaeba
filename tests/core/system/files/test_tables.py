"""Tests of tables as TOML."""

from __future__ import annotations

from protofl.system.files.tables import parse_toml, to_toml


def test_toml_is_written_as_it_is_read():
    values = {
        "text": 'a "quoted" \\ word\nλ',
        "numbers": [1, 2.5, -3],
        "yes": True,
        "table": {"plain": 1, "with.dot": "x", "umläut": []},
    }
    assert parse_toml(to_toml(values)) == values
