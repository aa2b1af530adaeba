"""Options of plugins: pydantic models with the paper's symbols, ranges and deviations."""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

import pydantic
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from protofl.errors import UsageError, unknown
from protofl.system.consent import allow, is_allowed, is_inside

Consent = bool | Literal["outside", "code"]


def Field(
    default: Any = ...,  # noqa: ANN401
    *,
    description: str,
    consent: Consent = False,
    from_data: bool = False,
    **about: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Declare an option: its default, description and bounds.

    Args:
        default: None if the variant, another option or ``resolve`` sets the value. Annotate the
            final type, ``tau: float = Field(None, …)``; an option that may stay None is
            ``float | None``.
        description: The effect of the option; for a number, the effect at the ends of its range.
        consent: True if only the user may allow another value than the default, such as opening a
            pickle or running code from a folder. The value then counts on the command line and in
            the arguments of `pf.run`; in a ``--config`` file or a run folder, which
            others may have written, it is refused. ``"outside"`` is for an output folder: a file
            may name one inside its own folder. ``"code"`` is for a class, ``MODULE:CLASS`` or
            ``FILE.py:CLASS``, which `pf.load_class` loads: ``--trust-code`` allows it, too.
        from_data: True for an option of a model group for which a data set may have a default, such
            as the side of small images (``resized`` in the data set's ``defaults``).
        **about: Further arguments of pydantic's ``Field``: ``ge``, ``gt``, ``le``, ``lt``,
            ``alias``, ….
    """
    known = default is not None
    marks = {"consent": consent} if consent else {}
    marks |= {"from_data": True} if from_data else {}
    if marks:
        about["json_schema_extra"] = marks
    if consent and consent != "code":
        description += " (from the command line only)"
    return pydantic.Field(default, description=description, validate_default=known, **about)


class Strict(BaseModel):
    """Model that refuses numbers that are not finite, and booleans for numbers and strings.

    Pydantic would read true as 1. None stands for the default of an option whose default is None.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_truths(cls, data: Any) -> Any:  # noqa: ANN401 - pydantic passes raw input
        if not isinstance(data, dict):
            return data
        names, read = option_names(cls), {}
        for key, value in data.items():
            field = cls.model_fields.get(names.get(str(key), str(key)))
            if field and isinstance(value, bool) and not _accepts_bool(field.annotation):
                raise ValueError(f"{key} is {str(value).lower()}, expected a number or a text")
            if not (field and value is None and field.default is None):
                read[key] = value
        return read


class Config(Strict):
    """Options of one plugin. Every field has a description and, if it is a number, a range.

    A field whose symbol is a Python keyword carries the symbol as alias (``lambda_`` with
    ``alias="lambda"``); users write the alias.
    """

    model_config = ConfigDict(
        extra="forbid", populate_by_name=True, frozen=True, validate_default=True
    )


@dataclass(frozen=True)
class Deviation:
    """A difference between a paper and its published code, as one option.

    Attributes:
        where: The equation, table or algorithm line.
        paper: The option's value that follows the paper.
        official: The option's value that follows the published code.
        note: The difference, in a sentence.
    """

    where: str
    paper: Any
    official: Any
    note: str


class VariantConfig(Config):
    """Options of a method whose published code departs from its paper.

    Subclasses list the departures in ``deviations``; each key is a field whose default is None,
    meaning "as the variant says". Each can be set separately.

    Attributes:
        deviations: {option: the departure}.
        official: {option of the run: its default with ``variant=official``}.
        variant: ``paper`` or ``official``.
    """

    deviations: ClassVar[dict[str, Deviation]] = {}
    official: ClassVar[dict[str, Any]] = {}
    variant: Literal["paper", "official"] = Field(
        "paper", description="follow the paper's equations, or the published code's departures"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_from_variant(cls, data: Any) -> Any:  # noqa: ANN401 - pydantic passes raw input
        if not isinstance(data, dict):
            return data
        variant = data.get("variant", "paper")
        if variant not in ("paper", "official"):
            return data  # the field's own validation words the error
        open_ = [name for name in cls.deviations if data.get(name) is None]
        return {**data, **{name: getattr(cls.deviations[name], variant) for name in open_}}


def _accepts_bool(annotation: Any) -> bool:  # noqa: ANN401 - a type
    """Return True if a type accepts booleans: all types except numbers, strings and choices."""
    if get_origin(annotation) is Literal:
        return any(isinstance(choice, bool) for choice in get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return any(map(_accepts_bool, get_args(annotation)))
    return annotation not in (int, float, str, type(None))


def consents(config: type[BaseModel]) -> dict[str, str]:
    """Return the consents: {name that users write: field name}."""
    return _marked(config, "consent")


def from_data(config: type[BaseModel]) -> dict[str, str]:
    """Return the options that a data set may set: {name that users write: field name}."""
    return _marked(config, "from_data")


def _marked(config: type[BaseModel], mark: str) -> dict[str, str]:
    extra = {name: field.json_schema_extra for name, field in config.model_fields.items()}
    marked = {n for n, e in extra.items() if isinstance(e, dict) and e.get(mark)}
    return {written: name for written, name in option_names(config).items() if name in marked}


def check_consent(config: Config, owner: str, said: Container[str], home: Path) -> None:
    """Check that the user gave every consent among the options.

    Args:
        config: The options of a plugin.
        owner: How users write the plugin in ``--set``.
        said: The options that the user gave.
        home: The folder of the file, for output folders that it may name.

    Raises:
        UsageError: A consent comes from the file.
    """
    for key, name in consents(type(config)).items():
        value = getattr(config, name)
        usual = type(config).model_fields[name].get_default(call_default_factory=True)
        extra: Any = type(config).model_fields[name].json_schema_extra
        if extra["consent"] == "outside" and is_inside(value, home):
            continue
        if extra["consent"] == "code":
            if key in said or name in said:
                allow([value])
            elif ":" not in value or is_allowed(value):
                continue
        if value != usual and not (key in said or name in said):
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            raise UsageError(
                f"{owner}.{key}={text} comes from a file, and only you may allow it",
                f"it means: {type(config).model_fields[name].description}",
                f"to allow it: --set {owner}.{key}={text.strip(chr(34))}",
            )


def code_file(config: Config, name: str) -> Path | None:
    """Return the Python file of a class that an option names; None for all other options."""
    extra: Any = type(config).model_fields[name].json_schema_extra
    file = str(getattr(config, name)).rpartition(":")[0]
    is_code = isinstance(extra, dict) and extra.get("consent") == "code"
    return Path(file) if is_code and file.endswith(".py") else None


def option_names(config: type[BaseModel]) -> dict[str, str]:
    """Return {name that users write: field name}."""
    return {field.alias or name: name for name, field in config.model_fields.items()}


def parse_config(config: type[Config], values: dict[str, Any], owner: str) -> Config:
    """Validate ``values`` for the plugin ``owner``; strings are converted to the fields' types.

    Raises:
        UsageError: A key is unknown or a value is out of its range.
    """
    names = option_names(config)
    for key in values:
        if key not in names and key not in names.values():
            raise unknown(f"option of {owner}", key, names, f"see: protofl show {owner}")
    try:
        return config.model_validate({k: _plain(config, names, k, v) for k, v in values.items()})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "options"
        raise UsageError(
            f"{owner}: {key}={first.get('input')!r} is not possible: {first['msg']}",
            do=f"see: protofl show {owner}",
        ) from None


def _plain(config: type[Config], names: dict[str, str], key: str, value: Any) -> Any:  # noqa: ANN401
    """Return ``none`` of a command line as None, if it is not a choice (FedTGP's ``margin``)."""
    if str(value).lower() != "none":
        return value
    choices = _choices(config.model_fields[names.get(key, key)].annotation)
    return value if value in choices else None


def _choices(annotation: Any) -> list[Any]:  # noqa: ANN401 - a type
    """Return the values of the ``Literal`` types in an annotation."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for argument in get_args(annotation) for choice in _choices(argument)]
