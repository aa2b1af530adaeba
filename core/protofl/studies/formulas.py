"""Arithmetic in study files: ``4 * (3 * cnn4 + 2 * resnet152)`` over a study's constants."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from protofl.errors import UsageError, unknown

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_CALLS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "sqrt": lambda x: x**0.5}


def plain(name: str) -> str:
    """A name as formulas have it, ``-`` and ``.`` as ``_``."""
    return name.replace("-", "_").replace(".", "_")


def evaluate(formula: str, values: Mapping[str, float]) -> float:
    """The value of a formula.

    Args:
        formula: Numbers, names, ``+ - * / **``, brackets, ``min``, ``max`` and ``sqrt``.
        values: What names stand for.

    Raises:
        UsageError: It is none, or has a name that stands for nothing.
    """
    try:
        tree = ast.parse(formula, mode="eval").body
        return float(_value(tree, {plain(key): value for key, value in values.items()}))
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError) as error:
        raise UsageError(f"{formula!r} is no formula: {error}") from None


def names_in(formula: str) -> set[str]:
    """The names in a formula, but for those of functions; none where it is no formula."""
    try:
        tree = ast.parse(formula, mode="eval")
    except (SyntaxError, ValueError):
        return set()
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - {*_CALLS}


def _value(node: ast.expr, values: Mapping[str, float]) -> Any:  # noqa: ANN401 - a number
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return node.value
        case ast.Name(id=name):
            if name not in values:
                raise unknown("name in a formula", name, values)
            return values[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, values), _value(right, values))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, values)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _CALLS and args:
            return _CALLS[name](*(_value(a, values) for a in args))
    raise ValueError(ast.unparse(node))
