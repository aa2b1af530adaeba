"""Reproductions: tables and figures of papers, by paper (docs/how-to/write-a-reproduction.md)."""
