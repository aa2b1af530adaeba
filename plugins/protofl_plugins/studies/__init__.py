"""Tables and figures of papers as studies, a collection for each paper; see docs/how-to/reproduce-tables.md."""
