"""Install distributions without pip, by writing their metadata."""

from __future__ import annotations

import sys
import tomllib


def write_dist_info(project, site):
    """Write the ``.dist-info`` that pip would write, from a project's pyproject.toml.

    Args:
        project: The folder of the project.
        site: The folder on ``sys.path`` that contains its modules.
    """
    about = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = site / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    info.mkdir(parents=True)
    head = f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n"
    (info / "METADATA").write_text(head)
    lines = [
        f"[{group}]\n" + "\n".join(f"{name} = {target}" for name, target in entries.items())
        for group, entries in about["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


def forget_new_plugins():
    """Forget imported packages of ``protofl new-plugin``; other tests have others of that name."""
    for name in [name for name in sys.modules if name.startswith("protofl_my_")]:
        del sys.modules[name]
