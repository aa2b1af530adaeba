"""Options of plugins: pydantic models with the paper's symbols, ranges and deviations."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    overload,
)

import pydantic
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from protofl.errors import UsageError, unknown
from protofl.system.consent import is_inside

T = TypeVar("T")
Consent = bool | Literal["outside"]


if TYPE_CHECKING:
    # With None for its default an option is of the type that it has once it is filled in.
    @overload
    def Field(
        default: None, *, description: str, consent: Consent = False, **about: object
    ) -> Any: ...  # noqa: ANN401
    @overload
    def Field(default: T, *, description: str, consent: Consent = False, **about: object) -> T: ...
    @overload
    def Field(*, description: str, consent: Consent = False, **about: object) -> Any: ...  # noqa: ANN401


def Field(default: Any = ..., *, description: str, consent: Consent = False, **about: Any) -> Any:
    """Declare an option: its default, description and bounds.

    Args:
        default: None where something else decides: the variant, another option, or ``resolve``.
            An option that has a value by then has the value's type, ``tau: float = Field(None,
            …)``; one that may stay None says so, ``float | None``.
        description: What it does, for a number by its effect at the ends.
        consent: Whether another value than the default lets something happen that nobody but the
            user may allow: opening a pickle, running code from a folder. It then counts only where
            it is given on the command line or in the arguments of `pf.run`; from a ``--config``
            file, a recipe or a run folder, which may be a stranger's, it is refused. ``"outside"``
            is for an output folder: a file may name one inside its own folder.
        **about: What pydantic's ``Field`` takes: ``ge``, ``gt``, ``le``, ``lt``, ``alias``, ….
    """
    known = default is not None
    if consent:
        about["json_schema_extra"] = {"consent": consent}
        description += " (from the command line only)"
    return pydantic.Field(default, description=description, validate_default=known, **about)


class Strict(BaseModel):
    """Model whose numbers and texts cannot be written as true or false."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_truths(cls, data: Any) -> Any:  # noqa: ANN401 - pydantic passes raw input
        """Check that no true or false stands for a number, which pydantic would read as 1 or 0.

        Raises:
            ValueError: One does.
        """
        names = option_names(cls)
        for key, value in data.items() if isinstance(data, dict) else ():
            field = cls.model_fields.get(names.get(key) or key)
            if field and isinstance(value, bool) and not _accepts_bool(field.annotation):
                raise ValueError(f"{key} is {str(value).lower()}, which is no number and no text")
        return data


class Config(Strict):
    """Options of one plugin. Every field has a description and, where it is a number, a range.

    A field whose symbol is a Python keyword carries the symbol as alias (``lambda_`` with
    ``alias="lambda"``); users write the alias.
    """

    model_config = ConfigDict(
        extra="forbid", populate_by_name=True, frozen=True, validate_default=True
    )

    @model_validator(mode="before")
    @classmethod
    def _leave_open(cls, data: Any) -> Any:  # noqa: ANN401 - pydantic passes raw input
        """Drop a None that equals the default."""
        if not isinstance(data, dict):
            return data
        names = option_names(cls)
        fields = {key: cls.model_fields.get(names.get(key) or key) for key in data}
        still = {key for key, field in fields.items() if field and field.default is None}
        return {key: value for key, value in data.items() if value is not None or key not in still}


@dataclass(frozen=True)
class Deviation:
    """A difference between a paper and its published code, as one option.

    Attributes:
        where: The equation, table or algorithm line that is concerned.
        paper: The option's value that follows the paper.
        official: The option's value that follows the published code.
        note: What differs, in a sentence.
    """

    where: str
    paper: Any
    official: Any
    note: str


class VariantConfig(Config):
    """Options of a method whose published code departs from its paper.

    Subclasses list the departures in ``deviations``; each key is a field whose default is None,
    meaning "as the variant says". Any of them can be set alone.
    """

    deviations: ClassVar[dict[str, Deviation]] = {}
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
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()
    return any(map(_accepts_bool, parts)) if parts else annotation not in PLAIN


PLAIN = (int, float, str, type(None))
"""Types that true and false are none of."""


def consents(config: type[BaseModel]) -> dict[str, str]:
    """Return the consents: {name that users write: field name}."""
    extra = {name: field.json_schema_extra for name, field in config.model_fields.items()}
    marked = {n for n, e in extra.items() if isinstance(e, dict) and e.get("consent")}
    return {written: name for written, name in option_names(config).items() if name in marked}


def without_consents(
    options: Mapping[str, Mapping[str, Any]], configs: Mapping[str, type[BaseModel]]
) -> dict[str, dict[str, Any]]:
    """Return options of plugins, {plugin: {key: value}}, without consents."""
    own = {name: consents(config) for name, config in configs.items()}
    return {
        name: {key: value for key, value in values.items() if key not in own.get(name, ())}
        for name, values in options.items()
    }


def check_consent(config: Config, owner: str, said: Container[str], home: Path) -> None:
    """Check that the user gave every consent among the options.

    Args:
        config: The options of a plugin.
        owner: How users write the plugin in ``--set``.
        said: The options that the user gave, not a file.
        home: The folder of the file, for output folders that it may name.

    Raises:
        UsageError: One was not.
    """
    for key, name in consents(type(config)).items():
        value = getattr(config, name)
        usual = type(config).model_fields[name].get_default(call_default_factory=True)
        extra: Any = type(config).model_fields[name].json_schema_extra
        if extra["consent"] == "outside" and is_inside(value, home):
            continue
        if value != usual and not (key in said or name in said):
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            raise UsageError(
                f"{owner}.{key}={text} comes from a file, and is for nobody but you to allow",
                f"it means: {type(config).model_fields[name].description}",
                f"if you want that, give it yourself: --set {owner}.{key}={text.strip(chr(34))}",
            )


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
        key = ".".join(str(part) for part in first["loc"]) or "options"
        given = first.get("input")
        raise UsageError(
            f"{owner}: {key}={given!r} is not possible: {first['msg']}",
            do=f"see: protofl show {owner}",
        ) from None


def _plain(config: type[Config], names: dict[str, str], key: str, value: Any) -> Any:  # noqa: ANN401
    """Return ``none``, ``true`` and ``false`` of a command line as Python values.

    A word that is one of the option's choices (FedTGP's ``margin=none``) stays a word.
    """
    if not isinstance(value, str):
        return value
    if value in _choices(config.model_fields[names.get(key, key)].annotation):
        return value
    return {"none": None, "true": True, "false": False}.get(value.lower(), value)


def _choices(annotation: Any) -> list[Any]:  # noqa: ANN401 - a type
    """Return the values of the ``Literal`` types in an annotation."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for part in get_args(annotation) for choice in _choices(part)]
