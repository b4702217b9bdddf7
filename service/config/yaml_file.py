"""Small YAML files written by people, checked by pydantic models, with one clear line for what is wrong.

A module that parses a format of its own puts the format's error class on what is raised here (:func:`errors_as`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from service.domain.strict_yaml import StrictYamlError, parse_yaml

FILE_BYTES_MAX = 16 * 1024 * 1024
"""Size of a file, enough for every server of the largest cluster by name."""
_NAME_LENGTH_MAX = 255

_MESSAGES = {
    "missing": "is missing",
    "literal_error": "must be {expected}",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be finite",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    "list_type": "must be a list",
    "too_short": "must have at least {min_length} entry",
    "model_type": "must be a mapping",
    "dict_type": "must be a mapping",
}
_UNKNOWN_KEY = ("extra_forbidden", "invalid_key")
_TEXT_MESSAGE = f"must be text of 1 to {_NAME_LENGTH_MAX} printable characters"


class YamlFileError(ValueError):
    """A file that cannot be used. ``str()`` names the file and the key (``servers[1].gpus: ...``)."""

    def __init__(self, key: str, message: str, file: str = "") -> None:
        # A key may be any text: the message stays one line.
        shown = key if key.isprintable() else repr(key)
        super().__init__(": ".join(part for part in (file, shown, message) if part))
        self.key = key
        self.message = message
        self.file = file


def _number_as_text(value: object) -> object:
    """YAML makes a number of a rack called 1."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _name(value: str) -> str:
    if not 1 <= len(value) <= _NAME_LENGTH_MAX or not value.isprintable():
        raise ValueError(_TEXT_MESSAGE)
    return value


Word = Annotated[str, BeforeValidator(_number_as_text), AfterValidator(_name)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class FileModel(BaseModel):
    """A mapping of a file: no unknown keys, and no conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True)


Model = TypeVar("Model", bound=FileModel)


@contextmanager
def errors_as(error_type: type[YamlFileError], file: str = "") -> Iterator[None]:
    """Raise ``error_type`` with the file's name instead of :class:`YamlFileError`."""
    try:
        yield
    except YamlFileError as error:
        raise error_type(error.key, error.message, file) from error


def read_yaml(path: Path) -> object:
    """What the file holds; raises :class:`YamlFileError` (key empty) for one that cannot be read or is not YAML."""
    try:
        with path.open("rb") as stream:
            text = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise YamlFileError("", error.strerror or str(error)) from error
    if len(text) > FILE_BYTES_MAX:
        raise YamlFileError("", f"is larger than {FILE_BYTES_MAX} bytes")
    try:
        return parse_yaml(text)
    except StrictYamlError as error:
        raise YamlFileError("", str(error)) from error


def validate(model: type[Model], data: object) -> Model:
    """The checked content of a file. Raises :class:`YamlFileError` for the first fault: its key, the limit and the value."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        # A misspelt key is the cause of one that is missing.
        fault = min(error.errors(include_url=False), key=lambda fault: fault["type"] not in _UNKNOWN_KEY)
        *path, last = fault["loc"] or ("",)
        parts = [*path, str(last) if fault["type"] in _UNKNOWN_KEY else last]
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")
        raise YamlFileError(key, _message(model, fault["type"], fault)) from None


def _message(model: type[FileModel], kind: str, fault: Any) -> str:
    if kind in _UNKNOWN_KEY:
        return _unknown_key(_model_at(model, fault["loc"][:-1]), str(fault["loc"][-1]))
    text = _MESSAGES.get(kind, _TEXT_MESSAGE).format(**fault.get("ctx", {}))
    return text if kind == "missing" else f"{text} (got {_shown(fault['input'])})"


def _unknown_key(model: type[FileModel], name: str) -> str:
    keys = sorted(field.alias or key for key, field in model.model_fields.items())
    close = get_close_matches(name, keys, n=1)
    return f"unknown key; did you mean {close[0]!r}?" if close else f"unknown key; the keys are {', '.join(keys)}"


def _model_at(model: type[FileModel], path: tuple[int | str, ...]) -> type[FileModel]:
    """The model of the mapping at this place of the file."""
    for part in path:
        if isinstance(part, str):
            found = _model_in(model.model_fields[part].annotation)
            assert found is not None, "only a mapping has unknown keys"
            model = found
    return model


def _model_in(annotation: Any) -> type[FileModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, FileModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _shown(value: object) -> str:
    """The value, short enough for one line of an error."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
