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
Routes are below `/v1` and use JSON. The OpenAPI document at `{OPENAPI_PATH}` is the machine-readable form of this page.

- **Token.** Every request needs `Authorization: Bearer TOKEN`: an [API key](../how-to/access.md), or the token in the file
  `token` of the data folder, which has the rights of an admin. `/healthz`, `/readyz` and the pages of problem types need none.
  `POST /v1/attempts/ID/progress` needs the attempt's own token, which is valid for nothing else.
- **Permissions.** [Permissions](permissions.md) lists the routes of each role. What a caller may not see is reported as not found
  (404); what a caller may see but not do, as forbidden (403).
- **Limits.** Too many requests of a key per second, wrong tokens from an address, and too many requests, plans, event streams or
  bytes of a caller at a time get 429. Limits of all callers together give 503. Both have `Retry-After`, and `detail` names the
  setting ([security](../explanation/security.md#one-caller-and-the-others)).
- **Request ids.** Every answer has `X-Request-Id`, the client's own if it sent one. The audit log contains it.
- **Host and origin.** A request is refused if its `Host` is not in `allowed_hosts`, or its `Origin` is not in `allowed_origins`.
  Bodies must be `application/json`.
- **Time** is ISO 8601 in UTC in fields that end in `_at`; durations are seconds in fields that end in `_s`.
- **Unknown keys** in requests are refused. Answers may gain keys ([stability](stability.md)). Whole numbers in paths and queries
  are digits alone: `1.0` and `+1` are refused.
- **Errors** are problem details (RFC 9457): see [problems](problems.md).
- **Idempotency.** A POST with an `Idempotency-Key` takes effect once. The same key with the same body returns the same answer.
- **Lists** have pages. `next` of a page is opaque; pass it as `after` to get the next page.
- **Versions.** `GET /v1/jobs/ID` returns an `ETag`. `If-None-Match` avoids a transfer. A change with `If-Match` fails with 412 if
  the job has changed meanwhile.
- **Effects.** A POST such as cancel, hold or drain answers 202: the request is durable, and the next scheduling cycle acts on it.
"""

_ORDER = ("get", "post", "put", "patch", "delete")


@cache
def openapi() -> dict[str, Any]:
    """The OpenAPI document of an application that serves no requests."""
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
        needed = "" if operation["requestBody"].get("required") else " Optional."
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
