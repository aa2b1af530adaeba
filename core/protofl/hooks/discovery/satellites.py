"""Plugins in distributions of their own, for errors where these are not installed."""

from __future__ import annotations

SATELLITES = {
    "flower": ("flower", "nodes", "deploy", "node"),
    "privacy": ("dp-prototypes", "dp-sgd", "minimum-count", "shadow", "leak"),
    "ray": ("ray",),
}
"""{extra of protofl: names of the plugins and commands that its distribution has}."""


def how_to_install(name: str) -> str:
    """Return the command that installs a satellite's plugin, with "; "; empty for other names."""
    for extra, names in SATELLITES.items():
        if name in names:
            return (
                f"install it: pip install 'protofl[{extra}]', from a checkout: pip install . "
                f"./plugins/protofl_{extra}; "
            )
    return ""
