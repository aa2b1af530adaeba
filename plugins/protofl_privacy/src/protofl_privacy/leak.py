"""All attacks of a run, their result as values for ``leak.json``, and the table of keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import protofl as pf
from protofl_privacy.evidence import ATTACKERS, Evidence, families
from protofl_privacy.labels import LabelLeak, label_leaks, true_keys
from protofl_privacy.membership import MembershipLeak, membership_leaks, strongest
from protofl_privacy.moments import moment_leaks
from protofl_privacy.reconstruction import Reconstructions, picture, reconstruction_leaks
from protofl_privacy.sentences import about_labels, about_members, about_samples

FOLDER, FILE, PICTURE = "leak", "leak.json", "reconstruction.png"
"""The folder in a run folder, the file with all numbers, and the picture."""


@dataclass
class Leak:
    """Information in the uploads of a run that these attacks find.

    Attributes:
        run: The run folder.
        method: Its method.
        trial: The trial.
        round: The round, from 0.
        clients: Number of attacked clients.
        keys: {key of the wire: what it is, as the method declares it}.
        labels: Label inference.
        membership: Membership inference.
        reconstructions: Reconstruction.
        shadows: Number of shadow runs.
        notes: Notes for the user.
        true: Keys that say what the clients have (`labels.true_keys`).
        moments: Samples that sums and second moments give away (`moments.moment_leaks`).
    """

    run: Path
    method: str
    trial: int
    round: int
    clients: int
    keys: dict[str, str]
    labels: list[LabelLeak]
    membership: list[MembershipLeak]
    reconstructions: Reconstructions
    shadows: int = 0
    notes: list[str] = field(default_factory=list)
    true: set[str] = field(default_factory=set)
    moments: dict[str, tuple[int, str]] = field(default_factory=dict)

    def to_values(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "method": self.method,
            "trial": self.trial,
            "round": self.round,
            "clients": self.clients,
            "shadows": self.shadows,
            "attackers": ATTACKERS,
            "summary": [
                about_labels(self.labels, self.true),
                about_members(self.membership),
                about_samples(self.reconstructions.leaks, self.moments),
            ],
            "keys": key_table(self),
            "labels": [leak.to_values() for leak in self.labels],
            "membership": [leak.to_values() for leak in self.membership],
            "reconstruction": [leak.to_values() for leak in self.reconstructions.leaks],
            "notes": self.notes,
        }


def measure(
    run: pf.Run,
    *,
    trial: int = 0,
    round: int | None = None,
    clients: int = 50,
    budget: int = 2000,
    shadows: Sequence[pf.Run] = (),
    seed: int = 0,
    progress: Callable[[str], None] = lambda stage: None,
) -> Leak:
    """Run all attacks on the uploads of a round.

    Args:
        run: The run, with recorded uploads and kept weights of the round.
        trial: The trial.
        round: The round, from 0; None for the last one that has both.
        clients: Largest number of attacked clients.
        budget: Largest number of samples of other clients that the attacker has.
        shadows: Shadow runs for LiRA (`shadow.shadow_runs`).
        seed: Seed of all draws of the attackers.
        progress: Takes the name of each stage.

    Raises:
        UsageError: The run has not recorded what the attacks need, or is not a classification.
    """
    evidence = Evidence(run, trial=trial, round=round, clients=clients, samples=budget, seed=seed)
    shadow_evidence = [
        Evidence(each, trial=0, clients=clients, samples=budget, seed=seed) for each in shadows
    ]
    upload = evidence.uploads[evidence.clients[0]]
    declared = _meanings(evidence, families(upload))
    progress("labels")
    labels = label_leaks(evidence)
    progress("membership")
    membership = membership_leaks(evidence, shadow_evidence)
    progress("reconstruction")
    reconstructions = reconstruction_leaks(evidence)
    return Leak(
        run.folder,
        run.name,
        trial,
        evidence.round,
        len(evidence.clients),
        declared,
        labels,
        membership,
        reconstructions,
        len(shadows),
        _notes(evidence),
        true_keys(evidence),
        moment_leaks(evidence),
    )


def _notes(evidence: Evidence) -> list[str]:
    """Return what a reader must know to judge the numbers."""
    result = []
    if evidence.plan.composition.transforms:
        names = ", ".join(member.name for member in evidence.plan.composition.transforms)
        result.append(f"the uploads are those that the server gets, after {names}")
    if len(evidence.clients) < len(evidence.uploads):
        few, many = len(evidence.clients), len(evidence.uploads)
        result.append(f"{few} of {many} clients are attacked (--clients)")
    return result


def _meanings(evidence: Evidence, keys: Sequence[str]) -> dict[str, str]:
    """Return what each key is, as the run's plugins and the runtime declare it."""
    result = {}
    for key in keys:
        found = evidence.plan.composition.keys.find(key)
        result[key] = found.meaning if found else ""
    return result


# --- the table of keys ----------------------------------------------------------------------------

NOT_ATTACKED = "not measured: no attack here reads this key"


def key_table(leak: Leak) -> list[dict[str, str]]:
    """Return one row per key of the wire: what each attack found in it, at its strongest."""
    return [
        {
            "key": key,
            "meaning": meaning,
            "labels": _labels_of(leak, key),
            "membership": _membership_of(leak, key),
            "reconstruction": _reconstruction_of(leak, key),
        }
        for key, meaning in leak.keys.items()
    ]


def _labels_of(leak: Leak, key: str) -> str:
    for found in leak.labels:
        if found.key == key:
            if found.exact:
                return "counts of all classes, exact"
            if found.presence.value is None:
                return f"shares off by {found.distance.text()}"
            return f"presence AUC {found.presence.text()}"
    if key == "classes" or key.endswith(".classes"):
        return "the client's classes, exact" if key in leak.true else "not the client's classes"
    if key == "samples":
        known = "the number of samples, exact" if key in leak.true else "not the number of samples"
        return f"{known}; no class"
    return NOT_ATTACKED


def _membership_of(leak: Leak, key: str) -> str:
    """Return the largest area; as the largest of several it is a little too large by chance."""
    attacks = [each for each in leak.membership if each.key == key]
    best = strongest(attacks)
    if best is None:
        return f"not measured: {attacks[0].auc.why}" if attacks else NOT_ATTACKED
    return f"AUC {best.auc.text()} ({best.attacker}, {best.rule})"


def _reconstruction_of(leak: Leak, key: str) -> str:
    """Return the result for the uploaded rows, of the insider; for moments, what they give away."""
    if key in leak.moments:
        return leak.moments[key][1]
    found = [each for each in leak.reconstructions.leaks if each.key == key]
    sent = next((each for each in found if each.behind == "sent"), None)
    if sent is None:
        return "not measured: no rows were sent" if found else NOT_ATTACKED
    return f"{sent.psnr.text(1)} dB, gain {sent.gain.text(1)} dB over the class mean"


def write(leak: Leak, shape: tuple[int, ...], folder: Path | None = None) -> Path:
    """Write ``leak.json`` and the picture, replacing older ones; return their folder.

    Args:
        leak: The result.
        shape: Shape of a stored sample.
        folder: The folder; None for ``leak`` in the run folder.
    """
    target = leak.run / FOLDER if folder is None else pf.expand_user(folder)
    target.mkdir(parents=True, exist_ok=True)
    text = json.dumps(leak.to_values(), indent=1, ensure_ascii=False, allow_nan=False)
    (target / FILE).write_text(text + "\n", encoding="utf-8")
    (target / PICTURE).unlink(missing_ok=True)
    figure = picture(leak.reconstructions, shape)
    if figure is not None:
        figure.savefig(target / PICTURE, dpi=160, metadata={"Software": None})
    return target
