"""Three sentences about a leak: what attackers find of labels, of members and of samples."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from protofl_privacy.intervals import Number
from protofl_privacy.labels import LabelLeak
from protofl_privacy.membership import MembershipLeak, strongest
from protofl_privacy.reconstruction import ReconstructionLeak

_WHO = {"server": "The server", "colluder": "A colluder", "insider": "An insider"}
_WHO |= {"querier": "A querier"}


def about_labels(leaks: Sequence[LabelLeak], true: Collection[str]) -> str:
    """Return what the server knows about classes; ``true`` is of `labels.true_keys`."""
    if any(leak.exact for leak in leaks):
        return "The server knows each client's class counts exactly."
    if any(key.endswith("classes") for key in true):
        return "The server knows exactly which classes each client has."
    for leak in leaks:
        if _is_found(leak.presence):
            return f"The server finds which classes a client has (AUC {leak.presence.text()})."
        if (leak.distance.high or 1) < (leak.guess.low or 0):
            return "The server estimates a client's class shares better than by a guess."
    return "No attack here finds which classes a client has."


def about_members(leaks: Sequence[MembershipLeak]) -> str:
    """Return which training samples are found."""
    best = strongest(leaks)
    if best is None:
        return "Membership was not measured: no attack here reads these uploads."
    text = f"training samples from others (AUC {best.auc.text()})."
    if _is_found(best.auc):
        return f"{_WHO[best.attacker]} tells {text}"
    for leak in leaks:
        if sizes := [size for size, area in leak.by_size.items() if _is_found(area)]:
            return f"{_WHO[leak.attacker]} finds members of classes of size {' or '.join(sizes)}."
    return f"No attack here tells {text}"


def about_samples(
    leaks: Sequence[ReconstructionLeak], moments: Mapping[str, tuple[int, str]]
) -> str:
    """Return whether samples are decoded from the uploaded rows; ``moments`` of `moment_leaks`."""
    if given_away := {key: words for key, (count, words) in moments.items() if count}:
        found = ", ".join(f"{key} ({words})" for key, words in given_away.items())
        return f"Sums and second moments give features of samples away: {found}."
    if moments and not leaks:
        return "No sum or second moment here is of so few samples that it gives their features."
    if not leaks:
        return "Reconstruction was not measured: no attack here reads these uploads."
    for leak in leaks:
        if leak.behind == "sent" and _is_found(leak.gain, chance=0):
            how = f"{leak.gain.text(1)} dB nearer to the client's than the class mean is"
            return f"{_WHO[leak.attacker]} decodes samples from the uploads, {how}."
    return "No attack here decodes samples from the uploads better than the class mean."


def _is_found(number: Number, chance: float = 0.5) -> bool:
    """Return True if a number is above chance by twice what its interval allows.

    Tens of numbers are compared, and some of them are above their interval by chance.
    """
    value, low = number.value, number.low
    return value is not None and low is not None and 2 * low - value > chance
