"""Contract of client samplers of clients."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from protofl.errors import UsageError
from protofl.hooks.plugin.members import Choice
from protofl.testing.contract import Contract, expect, refusal, skip


class ClientSamplerContract(Contract):
    """The checks of a client sampler, on numbers of clients alone.

    A case that the client sampler refuses with a `protofl.UsageError` is left out, and said so; not
    all may be refused.

    Attributes:
        cases: {words: (clients M, clients that can be asked, how many to choose)}.
    """

    kind = "client-sampler"
    cases: ClassVar[dict[str, tuple[int, list[int], int]]] = {
        "three of ten": (10, [*range(10)], 3),
        "all of six": (6, [*range(6)], 6),
        "two of those who are there": (9, [1, 2, 5, 8], 2),
        "one client": (1, [0], 1),
        "a few of many": (2000, [*range(2000)], 20),
    }

    def select(
        self,
        clients: int,
        there: list[int],
        count: int,
        *,
        round: int = 0,
        seed: int = 0,
        known: float = 1.0,
        choice: Choice | None = None,
    ) -> list[int]:
        """The client sampler's answer, ascending; so large a share of the losses is known."""
        numbers = np.random.default_rng(7)
        losses = numbers.uniform(0, 3, clients)
        losses[numbers.random(clients) >= known] = np.nan
        arrays = {
            "clients": np.array(there),
            "sizes": numbers.integers(1, 400, clients),
            "losses": losses,
        }
        for values in arrays.values():
            values.setflags(write=False)
        selected = np.asarray(
            (choice or self.choice()).call(
                "select",
                round=round,
                count=count,
                generator=np.random.default_rng((seed, round)),
                **arrays,
            )
        )
        expect(
            selected.ndim == 1,
            f"select returns an array of shape {list(selected.shape)}, not a list",
        )
        expect(not selected.size or selected.dtype.kind in "iu", f"select returns {selected.dtype}")
        return sorted(map(int, selected))

    def taken(self) -> dict[str, tuple[int, list[int], int]]:
        """The cases that it does not refuse."""
        result, refused = {}, []
        for case_name, case in self.cases.items():
            try:
                self.select(*case)
            except UsageError as error:
                refused.append(f"{case_name}: refused ({refusal(error)})")
            else:
                result[case_name] = case
        if not result:
            skip("; ".join(refused))
        self.remarks += refused
        return result

    def test_each_client_once_of_those_who_can_be_asked(self) -> None:
        """The client sampler chooses as many available clients as requested, each once."""
        for case_name, (clients, there, count) in self.taken().items():
            for round in range(5):
                selected = self.select(clients, there, count, round=round)
                expect(
                    len({*selected}) == len(selected), f"{case_name}: a client stands there twice"
                )
                strange = {*selected} - {*there}
                expect(not strange, f"{case_name}: clients {sorted(strange)} cannot be asked")
                if not getattr(self.cls, "any_number", False):
                    expect(
                        len(selected) == count,
                        f"{case_name}: {len(selected)} clients in place of {count}; say "
                        "any_number = True where that is meant",
                    )

    def test_it_follows_its_generator(self) -> None:
        """With the same generator it chooses the same clients, whatever was asked before."""
        for case_name, (clients, there, count) in self.taken().items():
            one = self.select(clients, there, count, round=3)
            np.random.seed(1)
            choice = self.choice()
            self.select(clients, there, count, round=1, choice=choice)
            two = self.select(clients, there, count, round=3, choice=choice)
            expect(
                one == two, f"{case_name}: {one[:8]} and then {two[:8]}, with the same generator"
            )

    def test_losses_nobody_knows(self) -> None:
        """The client sampler also works if no losses, or only some, are known."""
        for case_name, (clients, there, count) in self.taken().items():
            for known in (0.0, 0.5):
                selected = self.select(clients, there, count, known=known)
                fits = len(selected) == count or getattr(self.cls, "any_number", False)
                expect(fits, f"{case_name}: {len(selected)} clients in place of {count}")

    def test_it_keeps_nothing_on_itself(self) -> None:
        """The client sampler keeps nothing on self."""
        choice = self.choice()
        for clients, there, count in self.taken().values():
            self.select(clients, there, count, choice=choice)
        kept = vars(choice.instance)
        expect(not kept, f"self holds {', '.join(kept)} after a choice")
