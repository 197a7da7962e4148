"""Settings of several parts: in one word, such as "noise/0.1" for a defence and its level, or with a name for each."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError, model_serializer
from pydantic import model_validator as validator
from pydantic.functional_validators import ModelWrapValidatorHandler

from gradleak.errors import GradleakError, InputError


class Form(BaseModel):
    """Base class of a setting written "a/b/c", which lists the values of its fields in their order.

    Trailing fields that have a default may be left out. A record stores the text as it was written.

    Examples:
        >>> class Net(Form):
        ...     dataset: str
        ...     stage: str = "trained"
        >>> Net.of("cifar10").stage, Net.form()
        ('trained', 'dataset[/stage]')
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    _text: str = PrivateAttr("")

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse a text; raise an InputError that says what is wrong if it is invalid."""
        try:
            return cls.model_validate(text)
        except ValidationError as error:
            raise InputError(reason(error)) from error

    @classmethod
    def form(cls) -> str:
        """Return the pattern of the text: the names of the fields, with optional fields in brackets."""
        fields = [(name.replace("_", " "), field.is_required()) for name, field in cls.model_fields.items()]
        return "".join(f"/{name}" if needed else f"[/{name}]" for name, needed in fields)[1:]

    @validator(mode="wrap")
    @classmethod
    def _read(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(value, cls):
            return value
        parts = value.split("/") if isinstance(value, str) else []
        required = sum(field.is_required() for field in cls.model_fields.values())
        if not required <= len(parts) <= len(cls.model_fields):
            raise ValueError(f"'{value}' is not written {cls.form()}")
        try:
            parsed = handler(dict(zip(cls.model_fields, parts, strict=False)))
            parsed.check()
        except ValidationError as error:
            field_name = error.errors()[0]["loc"][0]
            raise ValueError(f"'{value}' is not right as {cls.form()}: its {field_name}, {reason(error)}") from error
        except GradleakError as error:
            raise ValueError(f"'{value}' is not right: {error}") from error
        parsed._text = value
        return parsed

    def check(self) -> None:
        """Raise an error if the values of the fields do not fit together; by default all combinations are valid."""

    @model_serializer
    def _written(self) -> str:
        return self._text

    def __str__(self) -> str:
        return self._text


class Group(BaseModel):
    """Base class of a setting with several named values, such as {"network": "lenet", "epochs": 10}."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    def check(self) -> None:
        """Raise an error if the values do not fit together; by default all combinations are valid."""

    @validator(mode="after")
    def _fits(self) -> Self:
        try:
            self.check()
        except GradleakError as error:
            raise ValueError(str(error)) from error
        return self


def reason(error: ValidationError) -> str:
    """Return the first problem of a validation error in one line, in lower case so that it can continue a sentence."""
    text = error.errors()[0]["msg"].removeprefix("Value error, ")
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def is_form(annotation: Any) -> bool:
    """Return whether a type is a form."""
    return isinstance(annotation, type) and issubclass(annotation, Form)


def is_group(annotation: Any) -> bool:
    """Return whether a type is a group of named values."""
    return isinstance(annotation, type) and issubclass(annotation, Group)


def written_types(annotation: Any) -> list[str]:
    """Return the ways in which a page may write a type; a Literal and a `Form` may be written as str."""
    inner = get_args(annotation)
    if get_origin(annotation) is Literal:
        return ["str", f"Literal[{', '.join(map(repr, inner))}]"]
    if get_origin(annotation) is list:
        return [f"list[{text}]" for text in written_types(inner[0])]
    if is_form(annotation):
        return ["str"]
    if is_group(annotation):
        return ["dict"]
    if get_origin(annotation) is Annotated:
        return written_types(inner[0])
    return [str(annotation) if inner else annotation.__name__]
