"""Parse HTML pages as a browser does, for tests of their content."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from written_records import seal

VOID = {"meta", "link", "img", "source", "br", "input"}


class Element:
    """A tag and its content."""

    def __init__(self, tag, attributes, parent):
        self.tag, self.attributes, self.parent = tag, attributes, parent
        self.inside = []

    def __getitem__(self, name):
        return self.attributes[name]

    def get(self, name, default=None):
        return self.attributes.get(name, default)

    @property
    def text(self):
        parts = [p if isinstance(p, str) else p.text for p in self.inside]
        return "".join(parts)

    @property
    def words(self):
        return re.sub("[ \n\t]+", " ", self.text).strip(" ")

    def all(self, *tags):
        """Return the elements inside, in order; only those with these tags, if any are given."""
        found = []
        for part in self.inside:
            if isinstance(part, Element):
                found += [part] * (not tags or part.tag in tags) + part.all(*tags)
        return found

    def has_class(self, name):
        return name in (self.get("class") or "").split()


class Reader(HTMLParser):
    """Parses a page into elements; fails if tags are not closed in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.root = self._at = Element("", {}, None)
        self.feed(text)
        self.close()
        assert self._at is self.root, f"<{self._at.tag}> is not closed"

    def handle_starttag(self, tag, attrs):
        assert len({name for name, _ in attrs}) == len(attrs), f"twice the same in <{tag}>"
        element = Element(tag, dict(attrs), self._at)
        self._at.inside.append(element)
        if tag not in VOID:
            self._at = element

    def handle_startendtag(self, tag, attrs):
        self._at.inside.append(Element(tag, dict(attrs), self._at))

    def handle_endtag(self, tag):
        assert self._at.tag == tag, f"</{tag}> closes <{self._at.tag}>"
        self._at = self._at.parent

    def handle_data(self, data):
        self._at.inside.append(data)


def unfinished(folder, rows):
    """Turn a finished run's folder into an unfinished one with these rows."""
    (folder / "metrics.jsonl").write_text(rows)
    (folder / "summary.json").unlink()
    seal(folder, finished=False)


def read(text):
    """Return a page as elements."""
    return Reader(text).root


def facts_of(page):
    """Return {label: value} of the page's first list of facts."""
    lists = [dl for dl in page.all("dl") if dl.has_class("facts")]
    return {d.all("dt")[0].words: d.all("dd")[0].all("span")[0].words for d in lists[0].all("div")}


def tables_of(page):
    """Return {caption: (headings, rows)} of a page's tables."""
    found = {}
    for table in page.all("table"):
        heads = [th.words for th in table.all("thead")[0].all("th")]
        rows = [[c.words for c in tr.all("th", "td")] for tr in table.all("tbody")[0].all("tr")]
        found[table.all("caption")[0].words] = (heads, rows)
    return found
