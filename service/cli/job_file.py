"""Reading a job file: YAML or JSON with the keys of the API. Some values may be written differently.

A duration may be ``2h`` or ``02:00:00``; a number in ``env`` or ``command`` is the text that stands in the file; ``graph`` may
name a JSON file, and ``working_dir`` a folder, relative to the job file. What an option takes as one text, the key takes as well.
Several YAML documents are a list of jobs, as ``sooner job spec`` prints them.
"""

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from service.cli.fail import fail
from service.cli.options import STANDARD, read_file
from service.cli.short_forms import array_of, gpu_types_of, topology_of, volume_of, words_of
from service.domain.duration import seconds_of
from service.domain.strict_yaml import RepeatedKeyError, StrictYamlError, parse_yaml_documents, unique_keys

FILE_BYTES_MAX = 64 << 20
"""Limit of a job file. The service has its own limit, the setting body_bytes_max."""

_SHORT_FORMS: Final[Mapping[str, Callable[[str], Any]]] = {
    "command": words_of,
    "array": array_of,
    "topology": topology_of,
}


def read_job_file(path: str) -> dict[str, Any]:
    """The file (``-``: standard input) as a body that can be sent. Ends the command for one that cannot."""
    try:
        content = _parse(read_file(path, FILE_BYTES_MAX).decode("utf-8"))
        # YAML has not-a-numbers and sets, JSON has neither: refuse them here, where the file's name is known.
        json.dumps(content, allow_nan=False)
    except FileNotFoundError:
        fail(f"{path}: No such file; to run it as a command, add a name: --name NAME -- {shlex.quote(path)}")
    except OSError as error:
        fail(f"{path}: {error.strerror or error}")
    except (StrictYamlError, RepeatedKeyError) as error:
        fail(f"{path}: {error}")
    except (TypeError, ValueError, RecursionError) as error:
        fail(f"{path}: cannot be read as a job: {' '.join(str(error).split())}")
    if isinstance(content, list):
        content = {"jobs": content}
    if not isinstance(content, dict):
        fail(f"{path}: expected a job (name: ..., command: [...]) or a list of them")
    folder = Path() if path == STANDARD else Path(path).parent
    jobs = content.get("jobs")
    for job in jobs if isinstance(jobs, list) else [content]:
        if isinstance(job, dict) and isinstance(job.get("graph"), str):
            job["graph"] = _graph(folder / job["graph"])
        if isinstance(job, dict) and isinstance(job.get("working_dir"), str) and job["working_dir"]:
            job["working_dir"] = _folder(folder, job["working_dir"])
    return content


def _graph(file: Path) -> Any:
    """The layer graph in a file that ``sooner graph`` has written."""
    try:
        return json.loads(read_file(str(file), FILE_BYTES_MAX))
    except (OSError, ValueError, RecursionError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
        fail(f"graph: {file}: {reason}")


def _folder(beside: Path, text: str) -> str:
    try:
        return str((beside / Path(text).expanduser()).absolute())
    except RuntimeError as error:
        fail(f"working_dir: {text!r}: {error}")


def _parse(text: str) -> Any:
    """JSON if it is JSON, else YAML (which reads numbers such as 1e3 as text)."""
    try:
        content = json.loads(text, object_pairs_hook=unique_keys)
    except RepeatedKeyError:
        raise
    except ValueError:
        documents = parse_yaml_documents(text)
        # BaseLoader makes nothing but text, lists and mappings.
        texts = list(yaml.load_all(text, Loader=yaml.BaseLoader))
        if len(documents) == 1:
            return _readable(documents[0], texts[0])
        # Several are a list of jobs. After the last line of dashes there may be nothing.
        found = [(job, text) for job, text in zip(documents, texts, strict=True) if job is not None]
        return [_readable(job, text) for job, text in found] or None
    return _readable(content, json.loads(text, parse_int=str, parse_float=str))


def _readable(content: Any, texts: Any) -> Any:
    """The content with durations as seconds, and numbers in ``env`` and ``command`` as the text of the file."""
    if isinstance(content, list):
        return [_readable(job, text) for job, text in zip(content, texts, strict=True)]
    if not isinstance(content, dict):
        return content
    # YAML's merge key "<<" is resolved in the content alone: without the text of a key its number is printed.
    found = {key: _value(str(key), value, texts.get(key, value)) for key, value in content.items()}
    if isinstance(found.get("jobs"), list):
        found["jobs"] = _readable(content["jobs"], texts["jobs"])
    if isinstance(found.get("gpu_type"), str) and "gpu_types" not in found:
        found |= gpu_types_of(found.pop("gpu_type"))
    return found


def _value(key: str, value: Any, text: Any) -> Any:
    if key == "env" and isinstance(value, dict):
        return {name: _text(entry, text.get(str(name), entry)) for name, entry in value.items()}
    if key == "command" and isinstance(value, list):
        return [_text(entry, word) for entry, word in zip(value, text, strict=True)]
    if key == "preemption" and isinstance(value, dict):
        return {name: _value(str(name), entry, None) for name, entry in value.items()}
    if key == "volumes" and isinstance(value, list):
        return [_short(key, volume_of, each) for each in value]
    if key == "after" and isinstance(value, (int, dict)):
        return [value]
    reader = seconds_of if key.endswith("_s") else _SHORT_FORMS.get(key)
    return value if reader is None else _short(key, reader, value)


def _short(key: str, reader: Callable[[str], Any], value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return reader(value)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _text(value: Any, written: Any) -> Any:
    """A number as it was written; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    return written if isinstance(written, str) else json.dumps(written)
