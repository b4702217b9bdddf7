"""YAML and JSON that people write, read strictly.

YAML's own readers take the last of several equal keys, so that a value is lost without a word. They also expand aliases of
aliases without end, and make dates of text: no file of Sooner has a date, but a command may.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import yaml

NODES_MAX: Final = 1_000_000
"""Limit of the entries of a document with aliases, each alias expanded. Without aliases the size of the file is the limit."""

_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"


class StrictYamlError(ValueError):
    """The text cannot be used; one line without the file's name."""


class RepeatedKeyError(ValueError):
    """A mapping with two values for one key."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{_shown(key)}: occurs twice")
        self.key = key


class _Refused(yaml.YAMLError):
    """YAML by the standard, but refused."""

    def __init__(self, node: yaml.Node, message: str) -> None:
        super().__init__(f"line {node.start_mark.line + 1}: {message}")


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {  # noqa: RUF012 (as the base class has it)
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str | bytes) -> None:
        super().__init__(text)
        self._nodes = 0
        self._sizes: dict[int, int] = {}
        """Entries of each complete node by its id, aliases expanded."""

    def compose_document(self) -> yaml.Node | None:
        # The nodes of an earlier document are gone, and their ids may be given again.
        self._sizes = {}
        return super().compose_document()

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        is_alias = self.check_event(yaml.AliasEvent)
        before = self._nodes
        node = super().compose_node(parent, index)
        if node is None:
            return None
        if not is_alias:
            self._nodes += 1
            self._sizes[id(node)] = self._nodes - before
            return node
        # An alias in its own anchor expands for ever, also where it is all that there is.
        self._nodes += self._sizes.get(id(node), NODES_MAX + 1)
        if self._nodes > NODES_MAX:
            raise _Refused(node, f"its aliases expand to more than {NODES_MAX:,} entries")
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        mapping: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in mapping.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise _Refused(key, str(RepeatedKeyError(key.value)))
            seen.add(key.value)
        return mapping


def parse_yaml(text: str | bytes) -> Any:
    """The content of one YAML document, in which a date is its text. Raises :class:`StrictYamlError`."""
    with _one_line():
        return yaml.load(text, Loader=_Loader)  # noqa: S506 (it is a safe loader)


def parse_yaml_documents(text: str | bytes) -> list[Any]:
    """The contents of the documents that lines of three dashes separate, each as :func:`parse_yaml` reads it."""
    with _one_line():
        return list(yaml.load_all(text, Loader=_Loader))


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except _Refused as error:
        raise StrictYamlError(str(error)) from None
    except RecursionError:
        raise StrictYamlError("YAML is nested too deeply to be read") from None
    except (LookupError, AttributeError, TypeError, OverflowError):
        # As PyYAML fails where a tag, such as !!int, is before a text that it does not describe.
        raise StrictYamlError("is not YAML: a value is not of the type that its tag (!!) names") from None
    except (yaml.YAMLError, ValueError) as error:
        raise StrictYamlError(f"is not YAML: {' '.join(str(error).split())}") from error


def unique_keys(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The ``object_pairs_hook`` of JSON. Raises :class:`RepeatedKeyError`."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise RepeatedKeyError(key)
        found[key] = value
    return found


def _shown(key: str) -> str:
    """A key may be any text: the message stays one short line."""
    return key if key.isprintable() and len(key) <= 60 else f"{key!r:.60}"
