"""``python -m protofl``: the command ``protofl`` of this interpreter."""

from importlib.metadata import entry_points

if __name__ == "__main__":
    [script, *_] = entry_points(group="console_scripts", name="protofl")
    script.load()()
