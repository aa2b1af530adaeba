"""Tables and figures of papers as studies, a collection for each paper; see docs/studies.md."""
