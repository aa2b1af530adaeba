"""Tables and figures of papers as data: rows, columns, settings, what was published; and ours."""
