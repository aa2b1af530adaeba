"""Formulas of cells: arithmetic with floats over constants and figures of other cells."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping

from protofl.errors import UsageError, unknown


def _power(base: float, exponent: float) -> float:
    try:
        return math.pow(base, exponent)
    except ValueError:
        raise ArithmeticError(f"{base:g} ** {exponent:g}") from None


_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: _power,
}
_CALLS: dict[str, Callable[..., float]] = {"min": min, "max": max, "sqrt": lambda x: _power(x, 0.5)}

LONGEST, DEEPEST = 1_000, 100
"""Limits of a formula: characters, and operations inside each other."""


class Undefined(UsageError):
    """A valid formula has no finite value for these numbers."""


def plain(name: str) -> str:
    """Return a name for formulas, with ``_`` for ``-`` and ``.``."""
    return name.replace("-", "_").replace(".", "_")


def evaluate(formula: str, values: Mapping[str, float]) -> float:
    """Return the value of a formula.

    Args:
        formula: Numbers, names, ``+ - * / **``, brackets, ``min``, ``max`` and ``sqrt``.
        values: {name: value}.

    Raises:
        UsageError: The formula is invalid, too long or too deep, or a name is unknown.
        Undefined: It has no finite value.
    """
    shown = repr(formula if len(formula) <= 60 else formula[:59] + "…")
    try:
        result = _number(_parsed(formula), {plain(key): value for key, value in values.items()})
        if not math.isfinite(result):
            raise OverflowError(f"{result:g}")
    except ArithmeticError as error:
        raise Undefined(f"{shown} has no finite value: {error}") from None
    except (SyntaxError, ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"{shown} is not a formula: {error}") from None
    return result


def check_formula(formula: str, constants: Mapping[str, float], cells: Iterable[str]) -> None:
    """Check a formula before the figures of other cells are known.

    Args:
        formula: The formula.
        constants: {name: value}.
        cells: Names of rows and columns.

    Raises:
        UsageError: The formula is invalid, or has no finite value whatever these figures are.
    """
    open_names = {plain(name) for name in cells} - {plain(name) for name in constants}
    try:
        evaluate(formula, {**dict.fromkeys(open_names, 1.0), **constants})
    except Undefined:
        if not open_names & names_in(formula):
            raise


def _parsed(formula: str) -> ast.expr:
    if len(formula) > LONGEST:
        raise ValueError(f"{len(formula):,} characters, expected at most {LONGEST:,}")
    return ast.parse(formula, mode="eval").body


def names_in(formula: str) -> set[str]:
    """Return the names in a formula without functions; none if the formula is invalid."""
    try:
        tree = _parsed(formula)
    except (SyntaxError, ValueError, RecursionError):
        return set()
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - {*_CALLS}


def _number(node: ast.expr, values: Mapping[str, float], depth: int = 1) -> float:
    if depth > DEEPEST:
        raise ValueError(f"more than {DEEPEST} operations inside each other")

    def inner(term: ast.expr) -> float:
        return _number(term, values, depth + 1)

    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.Name(id=name):
            if name not in values:
                raise unknown("name in a formula", name, values)
            return float(values[name])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](inner(left), inner(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -inner(operand)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _CALLS and args:
            return _CALLS[name](*map(inner, args))
    raise ValueError(ast.unparse(node))
