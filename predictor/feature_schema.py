"""The id of the feature vector, derived from the code that defines it. It is stored with each prediction and model."""

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

from policies.training.gpu_speed import published_speed
from policies.training.hardware import GPU_MODELS

_DEFINED_BY: Final = (
    "features", "history", "recurrence", "declarations", "baselines", "dataset", "rows", "survival", "arguments",
)  # fmt: skip
"""The modules of this package that define the numbers of the vector, beside the published speeds of GPU types."""


class _WithoutText(ast.NodeTransformer):
    """Code without docstrings and imports: neither changes a feature."""

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node


def schema_of(sources: Iterable[str]) -> str:
    """The id of the vector that these sources define: a hash of their code without imports, comments, docstrings and layout."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(ast.dump(_WithoutText().visit(ast.parse(source))).encode())
    return f"features:{digest.hexdigest()[:16]}"


_SAME_AS: Final = {"features:8c5da0fd4fd9abb9": "features:51934b5b48e8f77b"}
"""Ids of rewritten code that gives exactly the features of older code, under the id by which stored models know them."""


@cache
def schema() -> str:
    """Stored with each prediction and checked when a model is loaded. Any change of the code gives a new id, so that a model
    never gets features which it does not know. A rewrite that leaves every feature equal is entered in the table above.

    Worked out at the first use: to parse the modules takes longer than to import them.
    """
    speeds = repr({name: published_speed(name) for name in GPU_MODELS})
    sources = [Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8") for name in _DEFINED_BY]
    code = schema_of([*sources, speeds])
    return _SAME_AS.get(code, code)
