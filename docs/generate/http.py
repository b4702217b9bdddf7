"""The page of the HTTP API, from the OpenAPI document that the service itself serves."""

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from docs.generate.markdown import code, join, opening, table
from service.api.app import OPENAPI_PATH, create_app
from service.api.deps import ApiDependencies
from service.config.settings import load_settings
from service.db.session import open_database

_INTRODUCTION = f"""
Below `/v1`, JSON in and out. The machine-readable form of this page is the OpenAPI document at `{OPENAPI_PATH}`.

- **Token.** Every request carries `Authorization: Bearer TOKEN`: an [API key](../how-to/access.md), or the token in the file
  `token` of the data folder, which is an admin's. Open without it are `/healthz`, `/readyz` and the pages of problem types.
  `POST /v1/attempts/ID/progress` takes the attempt's own token, which is good for nothing else.
- **Permissions.** Which role may call which route: [permissions](permissions.md). What a caller may not see is answered as if it
  were not there (404); what he may see but not do, with 403.
- **Rates.** Too many requests of a key, or wrong tokens from an address, are answered with 429 and `Retry-After`.
- **Request ids.** Every answer carries `X-Request-Id`, the client's own if it sent one; the log of changes names it.
- **Host and origin.** Requests with a `Host` that is not in `allowed_hosts`, or with an `Origin` of another page than those
  in `allowed_origins`, are refused. Bodies must be `application/json`.
- **Time** is ISO 8601 in UTC in fields that end in `_at`; durations are seconds in fields that end in `_s`.
- **Strict.** Unknown keys in requests are refused; answers may gain keys (see [stability](stability.md)).
- **Errors** are problem details (RFC 9457), one shape for all: see [problems](problems.md).
- **Repeating.** A POST with an `Idempotency-Key` is carried out once: the same key with the same body gives the same
  answer again.
- **Lists** come in pages. `next` of a page is opaque; give it as `after` to go on.
- **Versions.** `GET /v1/jobs/ID` answers with an `ETag`; `If-None-Match` saves the transfer, and `If-Match` on a change makes
  it fail with 412 if the job has changed meanwhile.
- **Effects.** A POST that steers (cancel, hold, drain, ...) answers 202: the request is durable, and the next scheduling
  cycle acts on it.
"""

_ORDER = ("get", "post", "put", "patch", "delete")


@cache
def openapi() -> dict[str, Any]:
    """The OpenAPI document of an application that nobody calls."""
    with TemporaryDirectory() as folder:
        settings = load_settings({"data_dir": Path(folder)})
        database = open_database(settings.database_url)
        try:
            given = {"settings": settings, "database": database, "token": "", "now_s": lambda: 0.0}
            parts: dict[str, Any] = {field.name: given.get(field.name) for field in fields(ApiDependencies)}
            return create_app(ApiDependencies(**parts)).openapi()
        finally:
            database.close()


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and description of every route."""
    for path, methods in openapi()["paths"].items():
        for method in _ORDER:
            if method in methods:
                yield method.upper(), path, methods[method]


def page() -> str:
    """``reference/http-api.md``."""
    lines = opening("HTTP API", "the OpenAPI document", _INTRODUCTION)
    lines += table(
        ("Request", "What it does"),
        [
            (f"[`{method} {path}`](#{_anchor(f'{method} {path}')})", operation["summary"])
            for method, path, operation in operations()
        ],
    )
    for method, path, operation in operations():
        lines += _operation(method, path, operation)
    lines += ["## Documents", ""]
    for name, schema in sorted(openapi()["components"]["schemas"].items()):
        lines += _schema(name, schema)
    return join(lines)


def _operation(method: str, path: str, operation: dict[str, Any]) -> list[str]:
    lines = [f"## {method} {path}", "", operation["summary"].rstrip(".?") + _mark(operation["summary"])]
    if operation.get("description"):
        lines[-1] += " " + _plain(operation["description"])
    lines.append("")
    parameters = operation.get("parameters", [])
    lines += table(
        ("Parameter", "In", "Type", "Meaning"),
        [(code(each["name"]), each["in"], _type(each["schema"]), each.get("description", "")) for each in parameters],
    )
    content = operation.get("requestBody", {}).get("content", {})
    for media in content.values():
        needed = "" if operation["requestBody"].get("required") else " May be left out."
        lines += [f"Body: {_type(media['schema'])}.{needed}", ""]
    answers, refusals = [], []
    for status, response in operation["responses"].items():
        if response.get("description") == "Problem":
            refusals.append(status)
            continue
        kinds = {_type(media["schema"]) for media in response.get("content", {}).values() if media.get("schema")}
        answers.append((status, " or ".join(sorted(kinds)) or response.get("description", "")))
    lines += table(("Answer", "Holds"), answers)
    if refusals:
        lines += [f"Refusals ([problems](problems.md)): {', '.join(sorted(refusals))}.", ""]
    return lines


def _plain(text: str) -> str:
    """A docstring's words as Markdown, on one line."""
    return " ".join(re.sub(r":\w+:`~?[\w.]*?(\w+)`", r"`\1`", text).replace("``", "`").split())


def _mark(summary: str) -> str:
    return "?" if summary.endswith("?") else "."


def _schema(name: str, schema: dict[str, Any]) -> list[str]:
    lines = [f"### {name}", "", _plain(schema.get("description", "")) or name, ""]
    if "enum" in schema:
        return [*lines, "One of " + ", ".join(code(str(value)) for value in schema["enum"]) + ".", ""]
    required = schema.get("required", [])
    rows = []
    for key, value in schema.get("properties", {}).items():
        default = "required" if key in required else code(_constant(value["default"])) if "default" in value else ""
        rows.append((code(key), _type(value), default, value.get("description", "")))
    if not rows and ("anyOf" in schema or "oneOf" in schema):
        return [*lines, f"{_type(schema)}.", ""]
    return lines + table(("Key", "Type", "Default", "Meaning"), rows)


def _constant(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _type(schema: dict[str, Any]) -> str:
    """A type in words, with a link where it is a document of its own."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{_anchor(name)})"
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " or ".join(dict.fromkeys(_type(each) for each in schema[union]))
    if "const" in schema:
        return code(str(schema["const"]))
    if "enum" in schema:
        return " or ".join(code(str(value)) for value in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "array":
        return "list of " + _type(schema.get("items", {}))
    if kind == "object":
        return "object"
    if kind == "string":
        return "time" if schema.get("format") == "date-time" else "text"
    if kind in ("integer", "number"):
        return ("whole number" if kind == "integer" else "number") + _bounds(schema)
    return str(kind)


def _bounds(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    above = "above " if "exclusiveMinimum" in schema else ""
    if low is not None and high is not None:
        return f" (above {low:.12g}, at most {high:.12g})" if above else f" ({low:.12g} to {high:.12g})"
    return "" if low is None else f" ({above or 'at least '}{low:.12g})"


def _anchor(heading: str) -> str:
    """The anchor that Markdown viewers make of a heading."""
    kept = "".join(letter for letter in heading.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")
