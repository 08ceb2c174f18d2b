"""Change one setting in the text of a ``config.yaml`` and leave the rest of the text as a person wrote it. Pure.

The parser says at which characters a value begins and ends; only these are replaced, so comments, order and blank lines
stay. A comment inside a value that is replaced goes with it.
"""

from __future__ import annotations

from typing import Any

import yaml
from yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode

__all__ = ["set_value"]

_BLANKS = " \t\r\n"
"""What YAML takes for blank; other white space is text."""
_INDENT = 2


def set_value(text: str, key: str, value: object) -> str:
    """``text`` in which the dotted ``key`` has this value. Raises ``ValueError`` where the text has no place for it."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        raise ValueError("it is not valid YAML") from None
    if root is None or (isinstance(root, ScalarNode) and not root.value):
        return _insert_line(text, len(text), key.split("."), value, indent=0)
    if not isinstance(root, MappingNode):
        raise ValueError("it must be a mapping of setting groups, such as 'model:'")
    return _set_below(text, root, key.split("."), value)


def _set_below(text: str, parent: MappingNode, names: list[str], value: object) -> str:
    pair = next((pair for pair in parent.value if isinstance(pair[0], ScalarNode) and pair[0].value == names[0]), None)
    if pair is None:
        return _add_value(text, parent, names, value)
    name, found = pair
    if len(names) == 1:
        return _replace_value(text, name, found, _render_value(value))
    if isinstance(found, MappingNode) and found.value:
        return _set_below(text, found, names[1:], value)
    if isinstance(found, ScalarNode) and names[0] == "model" and found.value:
        # The short form, ``model: NAME``, says what ``model.default`` says.
        return _replace_value(
            text, name, found, _render_value({"default": found.value, _require_remaining_key(names): value})
        )
    return _replace_value(text, name, found, _render_value(_nest_value(names[1:], value)))


def _require_remaining_key(names: list[str]) -> str:
    if len(names) != 2:
        raise ValueError(f"{names[0]!r} is no mapping there")
    return names[1]


def _nest_value(names: list[str], value: object) -> object:
    for name in reversed(names):
        value = {name: value}
    return value


def _replace_value(text: str, name: Node, node: Node, written: str) -> str:
    begin, end = node.start_mark.index, _find_end(text, node)
    if isinstance(node, CollectionNode) and not node.flow_style:
        begin = text.index(":", name.end_mark.index) + 1
    lead = "" if begin == 0 or text[begin - 1] in " \t\n" else " "
    return f"{text[:begin]}{lead}{written}{text[end:]}"


def _find_end(text: str, node: Node) -> int:
    """Find where the text of a node ends. The parser puts the end of a block behind the comments that follow it."""
    if isinstance(node, CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _find_end(text, last[1] if isinstance(node, MappingNode) else last)
    begin = node.start_mark.index
    return begin + len(text[begin : node.end_mark.index].rstrip(_BLANKS))


def _add_value(text: str, parent: MappingNode, names: list[str], value: object) -> str:
    if parent.flow_style:
        at = parent.end_mark.index - 1
        comma = ", " if parent.value else ""
        return f"{text[:at]}{comma}{names[0]}: {_render_value(_nest_value(names[1:], value))}{text[at:]}"
    line_end = text.find("\n", _find_end(text, parent))
    at = len(text) if line_end < 0 else line_end + 1
    return _insert_line(text, at, names, value, indent=parent.start_mark.column)


def _insert_line(text: str, at: int, names: list[str], value: object, *, indent: int) -> str:
    before = text[:at] if not text[:at] or text[:at].endswith("\n") else f"{text[:at]}\n"
    lines = [f"{' ' * (indent + _INDENT * depth)}{name}:" for depth, name in enumerate(names)]
    return f"{before}{chr(10).join(lines)} {_render_value(value)}\n{text[at:]}"


def _render_value(value: Any) -> str:
    """Render a value on one line, so that it may stand between braces too. A text that would be read as something else
    has its characters escaped."""
    text = yaml.safe_dump([value], default_flow_style=True, width=10**9, allow_unicode=True, sort_keys=False)
    if yaml.safe_load(text) != [value] or "\n" in text.removesuffix("\n"):
        text = yaml.safe_dump([value], default_flow_style=True, width=10**9, default_style='"', sort_keys=False)
    return text.removesuffix("\n")[1:-1].strip(_BLANKS)
