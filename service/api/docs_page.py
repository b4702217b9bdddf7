"""The API's reference as one HTML page for a browser: no scripts, nothing from other hosts."""

import base64
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cache
from html import escape
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse

DOCS_PATH: Final = "/api/docs"

_STYLE: Final = """
body { font: 15px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color-scheme: light dark; }
summary { cursor: pointer; padding: .2rem 0; } code, pre { font-family: monospace; } pre { overflow-x: auto; }
b { display: inline-block; min-width: 4.5rem; } details { border-bottom: 1px solid #8884; }
td, th { text-align: left; padding: .1rem 1rem .1rem 0; vertical-align: top; }
"""

_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

CONTENT_SECURITY_POLICY: Final = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; frame-ancestors 'none'"
"""Allows this page's own style and nothing else."""


def docs_page_of(openapi: Callable[[], Mapping[str, Any]]) -> Callable[[Request], Awaitable[HTMLResponse]]:
    """The endpoint of the page; it is made at the first request."""
    page = cache(lambda: docs_page(openapi()))

    async def docs(request: Request) -> HTMLResponse:
        return HTMLResponse(await run_in_threadpool(page), headers={"Content-Security-Policy": CONTENT_SECURITY_POLICY})

    return docs


def docs_page(openapi: Mapping[str, Any]) -> str:
    """Every operation of an OpenAPI document by tag, then every schema."""
    info = openapi["info"]
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])} API</title>',
        f"<style>{_STYLE}</style><h1>{escape(info['title'])} API {escape(info['version'])}</h1>",
        f"<p>{escape(info.get('description', ''))}</p>",
    ]
    by_tag: dict[str, list[str]] = {}
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append(_operation(method.upper(), path, operation))
    for tag, operations in by_tag.items():
        parts += [f"<h2>{escape(tag)}</h2>", *operations]
    parts.append("<h2>Schemas</h2>")
    for name, schema in openapi["components"]["schemas"].items():
        text = escape(json.dumps(schema, indent=2, ensure_ascii=False))
        parts.append(
            f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary><pre>{text}</pre></details>'
        )
    return "\n".join(parts)


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    rows = [
        f"<tr><td><code>{escape(each['name'])}</code><td>{each['in']}<td>{escape(each.get('description', ''))}</tr>"
        for each in operation.get("parameters", [])
    ]
    parameters = f"<table>{''.join(rows)}</table>" if rows else ""
    body = _schemas(operation["requestBody"]["content"]) if "requestBody" in operation else ""
    answers = "".join(
        f"<tr><td>{status}<td>{escape(answer['description'])}<td>{_schemas(answer.get('content', {}))}</tr>"
        for status, answer in operation["responses"].items()
    )
    return (
        f"<details><summary><b>{method}</b> <code>{escape(path)}</code> {escape(operation['summary'])}</summary>"
        f"<p>{escape(operation.get('description', ''))}</p>{parameters}"
        f"{f'<p>Body: {body}</p>' if body else ''}<table>{answers}</table></details>"
    )


def _schemas(content: Mapping[str, Any]) -> str:
    """Links to the schemas that a body or an answer names."""
    names = dict.fromkeys(name for media in content.values() for name in _references(media.get("schema", {})))
    return ", ".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in names)


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)
