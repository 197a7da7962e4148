"""Check the arguments of public functions in one place, before any work starts.

Every argument is compared with its annotation, and every tensor with its stated shape. Ranges of numbers, and whatever
else only one function requires, are checked at the head of that function.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import types
import typing
from collections import abc
from collections.abc import Callable, Mapping
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import numpy as np
import torch
from torch import Tensor, nn

from gradleak.errors import InputError, first_line, printable

P = ParamSpec("P")
R = TypeVar("R")
# Whole numbers that torch can represent.
WHOLE = range(-(2**63), 2**63)
WORDS: dict[Any, str] = {
    bool: "True or False", int: "a whole number", float: "a number", str: "a text", Tensor: "a tensor",
    nn.Module: "an nn.Module", abc.Callable: "a function", None: "None", type(None): "None",
}  # fmt: skip
HINTS: dict[Any, dict[str, Any]] = {}
# The length of a value in a message.
LONGEST = 60


def checked_arguments(*unchecked: str, **shapes: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check the arguments of every call of a function, and raise an InputError of one line if one is invalid.

    Args:
        unchecked: The names of arguments that the function checks itself.
        shapes: The shapes of floating-point tensors by the names of the arguments, as in `weight="C I"` or
            `bias_gradient="C | N C"`. Dimensions with the same letter have the same size in all arguments.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        names = tuple(inspect.signature(function).parameters)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            given = dict(zip(names, args, strict=False)) | kwargs
            check({key: one for key, one in given.items() if key not in unchecked}, _hints(function), shapes)
            # torch does not take NumPy's whole numbers in all places.
            args = tuple(int(one) if isinstance(one, np.integer) else one for one in args)  # type: ignore[assignment]
            kwargs.update({key: int(one) for key, one in kwargs.items() if isinstance(one, np.integer)})
            try:
                return function(*args, **kwargs)
            except (MemoryError, RuntimeError) as error:
                # torch reports an allocation that fails on a CPU as a RuntimeError.
                if isinstance(error, MemoryError) or "can't allocate memory" in first_line(error):
                    raise InputError(f"{function.__name__} needs more memory than there is") from error
                raise

        return call

    return decorate


def check_fields(instance: Any, owner: str = "", shapes: Mapping[str, str] = types.MappingProxyType({})) -> None:
    """Check the fields of a dataclass, which messages name as those of the `owner`, as `checked_arguments` does."""
    hints = _hints(type(instance))
    check({name: getattr(instance, name) for name in hints}, hints, shapes, owner)


def check(values: Mapping[str, Any], hints: Mapping[str, Any], shapes: Mapping[str, str], owner: str = "") -> None:
    """Raise an InputError if a value does not fit its annotation, or a tensor its shape."""
    names = {key: f"{owner}'s {key}" if owner else key for key in values}
    for key, value in values.items():
        check_kind(names[key], value, hints.get(key, Any))
    sizes: dict[str, int] = {}
    shaped = {key: values[key] for key in shapes if torch.is_tensor(values.get(key))}
    # A tensor with only one possible shape gives the sizes that the others are compared with.
    for key in sorted(shaped, key=lambda key: "|" in shapes[key]):
        _check_shape(names[key], shaped[key], shapes[key], sizes)
    if len(devices := {value.device for value in shaped.values()}) > 1:
        raise InputError(f"{', '.join(shaped)} must be on one device; got {', '.join(sorted(map(str, devices)))}")


def check_kind(name: str, value: Any, hint: Any) -> None:
    """Raise an InputError if a value does not fit an annotation."""
    if not _fits(name, value, hint):
        raise InputError(f"{name} must be {_words(hint)}; got {described(value)}")


def _hints(owner: Any) -> dict[str, Any]:
    """Return the annotations of a function or a class, which are looked up once."""
    if owner not in HINTS:
        HINTS[owner] = typing.get_type_hints(owner)
    return HINTS[owner]


@functools.cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the origin and the arguments of an annotation; those of a union with tensors last, which take longest."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return Union, tuple(sorted(inner, key=lambda option: option is Tensor))
    return origin, inner


def _fits(name: str, value: Any, hint: Any) -> bool:
    """Return whether a value is of the kind that an annotation states; raise an error for tensors without values."""
    if hint is Tensor:
        if torch.is_tensor(value):
            check_values(name, value)
        return torch.is_tensor(value)
    origin, inner = _parts(hint)
    if hint is Any or isinstance(hint, TypeVar):
        return True
    if origin is Union:
        return any(_fits(name, value, option) for option in inner)
    if origin is Literal:
        return type(value) in map(type, inner)
    if hint in (int, float, bool):
        return _is_number(value, hint)
    if getattr(hint, "_is_protocol", False):
        return callable(value) and all(hasattr(value, part) for part in vars(hint) if not part.startswith("_"))
    if origin is abc.Callable:
        return callable(value)
    if origin is tuple and inner[-1] is not Ellipsis:
        return (
            isinstance(value, tuple)
            and len(value) == len(inner)
            and all(_fits(name, part, kind) for part, kind in zip(value, inner, strict=True))
        )
    if origin in (dict, abc.Mapping):
        return isinstance(value, abc.Mapping) and all(
            _fits(name, key, inner[0]) and _fits(f"{name}['{key}']", part, inner[1]) for key, part in value.items()
        )
    if origin is not None:  # sequences of one kind
        return (
            isinstance(value, origin)
            and not isinstance(value, str)
            and all(_fits(f"{name}[{place}]", part, inner[0]) for place, part in enumerate(value))
        )
    if hint is None:
        return value is None
    if not isinstance(value, hint):
        return False
    if isinstance(value, nn.Module):
        check_module(name, value)
    elif hasattr(value, "check"):
        value.check(name)
    return True


def _is_number(value: Any, kind: type) -> bool:
    """Return whether a value is a number of this kind; True, and numbers that are not finite, do not count."""
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if kind is int or isinstance(value, numbers.Integral):
        return isinstance(value, numbers.Integral) and int(value) in WHOLE
    return isinstance(value, numbers.Real) and math.isfinite(value)


def check_values(name: str, value: Tensor, *, finite: bool = True) -> None:
    """Refuse a tensor that is empty, complex or sparse, has no values, or holds NaN or infinite values if `finite`."""
    if value.is_meta or value.layout != torch.strided or value.is_quantized or value.is_complex():
        raise InputError(f"{name} must be an ordinary tensor of real numbers; got {described(value)}")
    if value.numel() == 0:
        raise InputError(f"{name} must not be empty; got {described(value)}")
    # A sum is quick and finite in nearly all cases; where it overflows, look at each entry.
    if not finite or not value.is_floating_point() or math.isfinite(value.detach().sum()):
        return
    if not bool(value.isfinite().all()):
        raise InputError(f"{name} holds NaN or infinite values")


def check_module(name: str, module: nn.Module) -> None:
    """Refuse a network whose parameters have no values, or are not real numbers."""
    for parameter, value in module.named_parameters():
        if isinstance(value, nn.parameter.UninitializedParameter):
            raise InputError(f"{name}: '{parameter}' has no shape yet: run the network once on its inputs")
        if value.is_meta or not value.is_floating_point():
            raise InputError(f"{name}: '{parameter}' must hold real numbers; got {described(value)}")


def _check_shape(name: str, value: Tensor, shapes: str, sizes: dict[str, int]) -> None:
    """Compare a tensor with its possible shapes, and note the sizes of its dimensions for the next arguments."""
    options = _options(shapes)
    for letters in options:
        known = zip(letters, value.shape, strict=False)
        if len(letters) == value.ndim and all(sizes.get(letter, size) == size for letter, size in known):
            break
    else:
        raise InputError(
            f"{name} must be {' or '.join(_shape(letters, sizes) for letters in options)}; got {described(value)}"
        )
    if not value.is_floating_point():
        raise InputError(f"{name} must be floating point; got {described(value)}")
    for letter, size in zip(letters, value.shape, strict=True):
        sizes.setdefault(letter, size)


@functools.cache
def _options(shapes: str) -> list[list[str]]:
    """Return the possible shapes, each a list of letters."""
    return [shape.split() for shape in shapes.split("|")]


def _shape(letters: list[str], sizes: Mapping[str, int]) -> str:
    """Return a shape in words, with the sizes that are known, as in "(C, I) = (10, 8)"."""
    named = ", ".join(letters) + "," * (len(letters) == 1)
    if not any(letter in sizes for letter in letters):
        return f"({named})"
    numbers_known = ", ".join(str(sizes[letter]) if letter in sizes else letter for letter in letters)
    return f"({named}) = ({numbers_known}{',' * (len(letters) == 1)})"


def _words(hint: Any) -> str:
    """Return what an annotation asks for, in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_words, inner)))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if hint in WORDS or origin in WORDS:
        return WORDS.get(hint, WORDS.get(origin, ""))
    if getattr(hint, "_is_protocol", False):
        return f"a {hint.__name__.lower()}"
    if origin is tuple and inner[-1] is not Ellipsis:
        return f"a pair of {' and '.join(dict.fromkeys(map(_words, inner)))}" if len(inner) == 2 else "a tuple"
    if origin is not None:
        return f"a sequence, each entry {_words(inner[0])}" if origin not in (dict, abc.Mapping) else "a dictionary"
    return f"a {hint.__name__}"


def described(value: Any) -> str:
    """Return a value for a message: its type, and its text if that is short."""
    if torch.is_tensor(value):
        return f"{tuple(value.shape)} of {value.dtype} on '{value.device}'" + (
            f", {value.layout}" if value.layout != torch.strided else ""
        )
    try:
        text = printable(repr(value))
    except Exception:  # from the caller's own class
        text = ""
    return text if 0 < len(text) <= LONGEST else f"an object of type {type(value).__name__}"
