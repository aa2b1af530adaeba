"""Options of plugins: pydantic models with the paper's symbols, ranges and deviations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from protofl.errors import UsageError, unknown

__all__ = ["Config", "Deviation", "Field", "VariantConfig", "option_names", "parse_config"]


class Config(BaseModel):
    """Options of one plugin. Every field has a description and, where it is a number, a range.

    A field whose symbol is a Python keyword carries the symbol as alias (``lambda_`` with
    ``alias="lambda"``); users write the alias.
    """

    model_config = ConfigDict(
        extra="forbid", populate_by_name=True, frozen=True, validate_default=True
    )


@dataclass(frozen=True)
class Deviation:
    """Where published code departs from its paper, in one option.

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
        filled = dict(data)
        for name, deviation in cls.deviations.items():
            if filled.get(name) is None:
                filled[name] = getattr(deviation, variant)
        return filled


def option_names(config: type[BaseModel]) -> dict[str, str]:
    """The names that users write, mapped to the fields' names."""
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
    """The words ``none``, ``true`` and ``false`` of a command line as Python values.

    A word that is one of the option's choices (FedTGP's ``margin=none``) stays a word.
    """
    if not isinstance(value, str):
        return value
    if value in _choices(config.model_fields[names.get(key, key)].annotation):
        return value
    return {"none": None, "true": True, "false": False}.get(value.lower(), value)


def _choices(annotation: Any) -> list[Any]:  # noqa: ANN401 - a type
    """The values of the ``Literal`` types in an annotation."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for part in get_args(annotation) for choice in _choices(part)]
