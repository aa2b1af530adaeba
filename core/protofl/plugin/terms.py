"""The loss terms of a run: those of its loss, and what is added to them or dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from protofl.errors import UsageError, unknown
from protofl.plugin.members import Member
from protofl.views.run import Phase


@dataclass(frozen=True)
class Term:
    """A loss term of the run.

    Attributes:
        method: Whose it is.
        name: Its name there.
        label: The name under which it is recorded: ``METHOD.TERM`` for a donor's.
    """

    method: str
    name: str
    label: str

    def is_trained(self, phase: Phase) -> bool:
        """Whether a phase trains it; a donor knows no phases, so its are for private data."""
        if self.label != self.name:
            return phase.data == "private"
        return not phase.terms or self.name in phase.terms


def chosen_terms(
    main: str, source: str, join: Callable[[str], Member], add: Iterable[str], drop: Iterable[str]
) -> list[Term]:
    """The terms that are summed.

    Args:
        main: The main method.
        source: The method whose loss it is.
        join: Has a method take part.
        add: Terms ``METHOD.TERM`` to add.
        drop: Terms ``TERM`` or ``METHOD.TERM`` to leave out.

    Raises:
        UsageError: One is unknown, added twice, or dropped and not there; or none is left.
    """

    def term(method: str, name: str) -> Term:
        return Term(method, name, name if method == main else f"{method}.{name}")

    terms = [term(source, name) for name in join(source).terms]
    for text in add:
        method, _, name = text.partition(".")
        if not name:
            raise UsageError(f"--add local_loss={text}: no term", do="write METHOD.TERM")
        declared = join(method).terms
        if name not in declared:
            raise unknown(f"loss term of {method}", name, declared)
        if term(method, name) in terms:
            raise UsageError(f"--add local_loss={text}: the composition holds it already")
        terms.append(term(method, name))
    for text in drop:
        found = [t for t in terms if text in (t.label, f"{t.method}.{t.name}")]
        if not found:
            labels = [t.label for t in terms]
            raise unknown("loss term", text, labels, "--drop takes a term that is there")
        terms.remove(found[0])
    if not terms:
        raise UsageError("no loss term is left", do="drop fewer terms")
    return terms
