"""Names for classes, instances and arrays that a program passes in place of names.

This is the door of `protofl.run` and `protofl.sweep` alone: behind it all options are texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from protofl.runs.request.plugin_names import ClassNames, Extra, marked_hooks, with_names
from protofl.system.files.atomic import default_data_dir
from protofl.system.files.home import expand_user

ARRAYS_PLACE = "protofl_plugins.datasets.arrays:Arrays"
"""The data set plugin for arrays of a program."""


@dataclass(frozen=True)
class NamedOptions:
    """Options with a name for every class, instance and array.

    Attributes:
        typed: The options as one types them.
        extra: The classes that the program passed.
        arrays: The arrays that the program passed.
        notes: Lines for the user.
    """

    typed: dict[str, Any]
    extra: Extra
    arrays: tuple[Any, ...]
    notes: tuple[str, ...]

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Keep the arrays at hand for the runs of the block."""
        with ExitStack() as until:
            for arrays in self.arrays:
                until.enter_context(arrays.open())
            yield


def name_classes(typed: Mapping[str, Any]) -> NamedOptions:
    """Replace classes, instances and arrays among options by names.

    Args:
        typed: Options by the long names of ``protofl run``.

    Raises:
        UsageError: A class has no hooks of its kind, or arrays are no data set.
    """
    options = dict(typed)
    names = ClassNames.among(options)

    def name(_: str, kind: str, value: Any) -> Any:  # noqa: ANN401 - whatever a user writes
        if isinstance(value, type):
            return names.of_class(kind, value)
        if not isinstance(value, str) and marked_hooks(type(value)):
            return names.of_class(kind, _only(value) if vars(value) else type(value))
        return value

    further = options.get("classes")
    if further is not None and not isinstance(further, Mapping):
        listed = [further] if isinstance(further, (str, type)) else [*further]
        options["classes"] = [item for item in listed if name("", "", item) is item]
    options, arrays = with_names(options, name), []
    if not isinstance(options.get("dataset"), (str, bool, int, float, type(None))):
        from protofl.system.class_places import load

        plugin: Any = load(ARRAYS_PLACE)
        folder = expand_user(options.get("data_dir") or default_data_dir())
        given = plugin.given(options["dataset"], folder)
        if isinstance(given, str):
            options["dataset"] = given
        else:
            arrays.append(given)
            options["dataset"] = given.name
            names.classes["dataset/arrays"] = ARRAYS_PLACE
    texts = options.get("classes")
    options = names.into(options)
    if isinstance(texts, list) and texts:
        options["class"] = texts
    return NamedOptions(options, names.extra, tuple(arrays), tuple(names.notes))


def _only(instance: Any) -> type:  # noqa: ANN401 - an instance of any plugin
    """Return a class whose only instance is this one, with its attributes as class attributes."""
    cls, made = type(instance), lambda cls: instance
    about = {"__doc__": cls.__doc__, "__module__": cls.__module__, "__new__": made}
    return type(cls.__name__, (cls,), {**vars(instance), **about})
