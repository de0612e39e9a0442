"""YAML text to a document, safely: no tags, no merge keys, bounded size, depth and expansion.

Only the structure of YAML is used. Every scalar but null stays text until a model gives it a type, so
`no`, `010`, `1e3` and `2024-01-01` mean what they say wherever text is wanted.
"""

from __future__ import annotations

import yaml

from tailrace.config.document import MAX_BYTES, MAX_DEPTH, Document, Node, Place
from tailrace.config.model import Loc
from tailrace.config.problem import quoted
from tailrace.core.errors import Misconfigured

MAX_NODES = 100_000
"""How many values a file may have once its aliases are expanded."""

_LOADER: type[yaml.SafeLoader | yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(name: str, content: bytes) -> Document:
    """Return the document that `content` spells; `name` is what errors call the file."""
    if len(content) > MAX_BYTES:
        raise Misconfigured("file-too-large", f"{name}: file has more than {MAX_BYTES} bytes", "Is it the right file?")
    try:
        text = content.decode("utf-8-sig")
        _refuse_unsafe(name, text)
        root = yaml.compose(text, Loader=_LOADER)
    except UnicodeDecodeError as error:
        raise Misconfigured(
            "not-yaml", f"{name}: byte {error.start} is not UTF-8", "Save the file as UTF-8."
        ) from error
    except yaml.MarkedYAMLError as error:
        raise _broken(
            "not-yaml", name, error.problem or "cannot be read", error.problem_mark or error.context_mark
        ) from error
    except yaml.YAMLError as error:
        raise Misconfigured("not-yaml", f"{name}: a character that YAML does not allow", "Remove it.") from error
    if root is None:
        raise Misconfigured(
            "not-yaml", f"{name}: file is empty", "Write a pipeline or platform file; see the examples."
        )
    if not isinstance(root, yaml.MappingNode):
        raise _broken("not-yaml", name, "top level is not a mapping of keys to values", root.start_mark)
    document = Document(name, {})
    _Builder(document).build(root)
    return document


def _refuse_unsafe(name: str, text: str) -> None:
    """Look at the flat stream of events first: nothing here recurses, whatever the text nests."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise _broken("yaml-tag", name, f"tag {quoted(tag)} is not allowed", event.start_mark)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise _broken("yaml-too-deep", name, f"values nest deeper than {MAX_DEPTH} levels", event.start_mark)


def _broken(code: str, name: str, what: str, mark: yaml.Mark | None) -> Misconfigured:
    where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
    return Misconfigured(code, f"{where}: {what}", "Write plain YAML: mappings, lists and scalars.")


class _Builder:
    """Turns nodes into values, remembering places, and counts what aliases expand to."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.nodes = 0

    def build(self, root: yaml.MappingNode) -> None:
        self.document.data = self.mapping(root, ())

    def value(self, node: yaml.Node, loc: Loc) -> Node:
        self.nodes += 1
        if self.nodes > MAX_NODES or len(loc) > MAX_DEPTH:
            raise _broken("yaml-too-large", self.document.name, "aliases expand to too much", node.start_mark)
        self.document.values[loc] = _place(node)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, loc)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*loc, index)) for index, item in enumerate(node.value)]
        text, plain = str(node.value), isinstance(node, yaml.ScalarNode) and not node.style
        return None if plain and text in ("", "~", "null", "Null", "NULL") else text

    def mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, Node]:
        values: dict[str, Node] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _broken("not-yaml", self.document.name, "key is not a plain text", key_node.start_mark)
            key = str(key_node.value)
            if key in values:
                what = f"key {quoted(key)} is written twice"
                raise _broken("duplicate-key", self.document.name, what, key_node.start_mark)
            self.document.keys[(*loc, key)] = _place(key_node)
            values[key] = self.value(value_node, (*loc, key))
        return values


def _place(node: yaml.Node) -> Place:
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)
