"""Names that plugins of this package had, for the entry-point group ``protofl.former_names``."""

from __future__ import annotations

MODEL_GROUPS = {
    "htfe-txt-7": (
        "htfe-txt-7 (HtFE-txt-all) was removed, as in HtFLlib (commit 302a231, March 2025)",
        "use htfe-txt-6, the same group without TextCNN",
    ),
    "htfe-mlp-5": (
        "htfe-mlp-5 was renamed: HtFLlib removed its net of 200 units (commit 302a231, March 2025)",
        "use htfe-mlp-4, the same group without that net",
    ),
}
"""{former name of a model group: (what happened, what to do)}."""
