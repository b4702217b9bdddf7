"""The model beside a plan: a ``config.json``, or a name of the catalogue."""

from pathlib import Path

from policies.catalogue.shapes import SHAPES
from policies.suggestion import did_you_mean
from service.plans.files import load_json
from service.plans.huggingface import huggingface_model
from service.plans.reading import Model
from service.plans.values import ReadError


def catalogue_model(name: str) -> Model:
    """A model of the catalogue. Raises :class:`ReadError` for an unknown name."""
    if name not in SHAPES:
        raise ReadError(
            "model",
            f"{name!r:.100} is neither a file nor in the catalogue{did_you_mean(name, SHAPES)}; it has {', '.join(SHAPES)}",
        )
    found = SHAPES[name]
    return Model(found.shape, found.sequence)


def model_of(text: str) -> Model:
    """A model by the path of its ``config.json`` (or of the folder of that), else by its name in the catalogue."""
    path = Path(text)
    if text not in SHAPES and path.is_dir():
        path = path / "config.json"
    if text in SHAPES or not (path.exists() or path.suffix == ".json"):
        return catalogue_model(text)
    try:
        return huggingface_model(
            load_json(path), path.parent.absolute().name if path.name == "config.json" else path.stem
        )
    except ReadError as error:
        raise ReadError(text, str(error).removeprefix(f"{path}: ")) from None
