"""Settings of several parts: in one word, such as "noise/0.1" for a defence and its level, or with a name for each."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError, model_serializer
from pydantic import model_validator as validator
from pydantic.functional_validators import ModelWrapValidatorHandler


class Group(BaseModel):
    """Base class of a setting with several named values, such as {"network": "lenet", "epochs": 10}."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    @classmethod
    def listed(cls, *rows: tuple[Any, ...]) -> list[dict[str, Any]]:
        """Return groups of this kind as dictionaries, each from the values of its fields in their order."""
        return [dict(zip(cls.model_fields, row, strict=True)) for row in rows]

    def __str__(self) -> str:
        """Return the values in one text, separated by slashes, as trials state some of their inputs."""
        return "/".join(str(value) for _, value in self)

    def check(self) -> None:
        """Raise an error if the values do not fit together; by default all combinations are valid."""

    @validator(mode="after")
    def _fits(self) -> Self:
        self.check()
        return self


class Form(Group):
    """Base class of a setting written "a/b/c", which lists the values of its fields in their order.

    A record stores the text as it was written.

    Examples:
        >>> class Net(Form):
        ...     dataset: str
        ...     epochs: int
        >>> Net.model_validate("cifar10/5").epochs, Net.form()
        (5, 'dataset/epochs')
    """

    model_config = ConfigDict(strict=False)
    _text: str = PrivateAttr("")

    @classmethod
    def form(cls) -> str:
        """Return the pattern of the text: the names of the fields."""
        return "/".join(cls.model_fields)

    @validator(mode="wrap")
    @classmethod
    def _read(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(value, cls):
            return value
        parts = value.split("/") if isinstance(value, str) else []
        if len(parts) != len(cls.model_fields):
            raise ValueError(f"it must be written {cls.form()}")
        parsed = handler(dict(zip(cls.model_fields, parts, strict=True)))
        parsed._text = value
        return parsed

    @model_serializer
    def _written(self) -> str:
        return self._text

    def __str__(self) -> str:
        return self._text


def reason(error: ValidationError) -> str:
    """Return the first problem of a validation error in one line, in lower case so that it can continue a sentence."""
    text = error.errors()[0]["msg"].removeprefix("Value error, ")
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def written_types(annotation: Any) -> list[str]:
    """Return the ways in which a page may write a type; a Literal and a `Form` may be written as str."""
    inner = get_args(annotation)
    if get_origin(annotation) is Literal:
        return ["str", f"Literal[{', '.join(map(repr, inner))}]"]
    if get_origin(annotation) is list:
        return [f"list[{text}]" for text in written_types(inner[0])]
    if isinstance(annotation, type) and issubclass(annotation, Group):
        return ["str" if issubclass(annotation, Form) else "dict"]
    if get_origin(annotation) is Annotated:
        return written_types(inner[0])
    return [str(annotation) if inner else annotation.__name__]
