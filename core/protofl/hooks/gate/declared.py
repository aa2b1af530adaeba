"""What plugins declare of their payloads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from protofl.errors import UsageError, unknown

WORDS = {
    "several": "of `classes`: a class may have several rows",
    "any": "it may have any type and shape, and under PART/… any name",
    "optional": "not every client, nor every round, has it",
}
"""What ``upload_rules`` may say of a key."""


Makers = Callable[[str], tuple[Sequence[tuple[str, Any]], Sequence[tuple[str, Any]]]]
"""Gives the names and classes of a hook's providers, and of others who make its payload."""


@dataclass(frozen=True)
class Declared:
    """The names of one direction, and what they are exempt from.

    Attributes:
        names: Names as declarations write them, ``PART/…`` among them; None where a provider
            declares none, not even an empty mapping.
        exempt: {name: words of `WORDS`}.
        sender: The hook and the plugins that provide it.
    """

    names: Collection[str] | None = None
    exempt: Mapping[str, frozenset[str]] = field(default_factory=dict)
    sender: str = ""

    @classmethod
    def of(cls, hook: str, attribute: str, makers: Makers) -> Declared:
        """What a hook's providers and the wrappers around them declare.

        Args:
            hook: The hook.
            attribute: ``uploads`` or ``downloads``.
            makers: Gives who makes a hook's payload.

        Raises:
            UsageError: An exemption is none.
        """
        providers, others = makers(hook)
        exempt: dict[str, frozenset[str]] = {}
        for name, plugin in (*providers, *others):
            if attribute == "uploads":
                exempt |= _exemptions(name, getattr(plugin, "upload_rules", {}))
        names = {*exempt}.union(*(getattr(plugin, attribute, ()) for _, plugin in others))
        found = [getattr(plugin, attribute, None) for _, plugin in providers]
        known = None if None in found else names.union(*filter(None, found))
        return cls(known, exempt, f"{hook} of {' and '.join(name for name, _ in providers)}")

    def covers(self, name: str) -> bool:
        """Whether a name is declared; whose the rows of ``classes`` are needs no word."""
        names = self.names or ()
        whose = name.removesuffix("classes").removesuffix(".")
        if name in names or (whose != name and (not whose or whose in names)):
            return True
        return any(_in_part(name, declared) for declared in names)

    def is_exempt(self, name: str, word: str) -> bool:
        """Whether a name is exempt from what a word of `WORDS` says."""
        return any(
            word in words and (name == declared or _in_part(name, declared))
            for declared, words in self.exempt.items()
        )


def _in_part(name: str, declared: str) -> bool:
    return declared.endswith("/…") and name.startswith(declared[:-1])


def _exemptions(owner: str, rules: Any) -> dict[str, frozenset[str]]:  # noqa: ANN401 - a plugin's
    if not isinstance(rules, Mapping):
        raise UsageError(f"upload_rules of {owner} is no mapping of names to words")
    found = {name: frozenset(str(words).split()) for name, words in rules.items()}
    for word in frozenset().union(*found.values()):
        if word not in WORDS:
            raise unknown(f"word in upload_rules of {owner}:", word, WORDS)
    return found
