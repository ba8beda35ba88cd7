"""Edits YAML text in place, so that a manifest's diff shows the edit and nothing else.

The parser only tells *where* things are; the edit is made in the text. Then both texts are parsed and compared: if
anything else changed, the edit is refused. Not ruamel.yaml, because it rewrites the whole document: of the layouts in
tests/cli/test_annotate.py it loses a comment above `---`, CRLF, JSON's layout and the indentation of lists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import yaml

from vramcast.errors import InvalidInput
from vramcast.task.workloads import Place

# The values that we write.
Content = str | Mapping[str, Any] | list[Any]

_PLAIN = re.compile(r"[A-Za-z0-9][\w./:=+-]*", re.ASCII)
_NUMBER_LIKE = re.compile(r"[0-9.]+([eE][0-9]+)?|0[xob][0-9a-fA-F]+", re.ASCII)
_NOTHING = ("", "null", "~", "{}")


def load_documents(text: str, source: str) -> list[Any]:
    """Every document, including empty ones, so that indices match those of the edits. Raises InvalidInput."""
    try:
        return [_unshared(document) for document in yaml.safe_load_all(text)]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidInput(f"{source}: not YAML: {' '.join(str(error).split())}") from None


def set_value(text: str, document: int, place: Place, value: Content, source: str) -> str:
    """Sets the value, and creates the mappings and lists that lead to it. Raises InvalidInput."""
    expected = load_documents(text, source)
    _put(expected, (document, *place), value)
    changed = _Text(text, document).put(place, value)
    return _checked(changed, expected, place, source)


def remove_value(text: str, document: int, place: Place, source: str) -> str:
    """Removes the entry, and the mappings that this leaves empty. Raises InvalidInput."""
    expected = load_documents(text, source)
    while _take(expected, (document, *place)) == {} and len(place) > 1:
        place = place[:-1]
    changed = _Text(text, document).take(place)
    return _checked(changed, expected, place, source)


def _checked(changed: str, expected: list[Any], place: Place, source: str) -> str:
    try:
        if load_documents(changed, source) == expected:
            return changed
    except InvalidInput:
        pass
    raise InvalidInput(
        f"{source}: {format_place(place)}: cannot be edited here without changing something else (an alias or an "
        "anchor, or an unusual layout): edit it by hand, then run `vramcast annotate --check`"
    )


def format_place(place: Place) -> str:
    """`spec.tasks[0].template`"""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).removeprefix(".")


def _unshared(value: Any) -> Any:
    """Copies what aliases share: an edit through one alias must not appear under the others."""
    if isinstance(value, dict):
        return {key: _unshared(inner) for key, inner in value.items()}
    return [_unshared(inner) for inner in value] if isinstance(value, list) else value


def _put(data: Any, place: Place, value: Content) -> None:
    for step, following in pairwise(place):
        fresh: Any = [] if isinstance(following, int) else {}
        if isinstance(data, list) and step == len(data):
            data.append(fresh)
        elif isinstance(data, dict) and data.get(str(step)) is None:
            data[step] = fresh
        data = data[step]
    if isinstance(data, list) and place[-1] == len(data):
        data.append(value)
    else:
        data[place[-1]] = value


def _take(data: Any, place: Place) -> Any:
    """Returns the rest of the mapping."""
    for step in place[:-1]:
        data = data[step]
    del data[place[-1]]
    return data


class _Text:
    """A text and the node tree of one of its documents; the nodes' marks are indices into the text."""

    def __init__(self, text: str, document: int) -> None:
        self._text = text
        self._newline = "\r\n" if "\r\n" in text else "\n"
        roots = list(yaml.compose_all(text.removeprefix("\ufeff"), Loader=yaml.SafeLoader))
        self._root = roots[document]
        self._shift = len(text) - len(text.removeprefix("\ufeff"))
        self._step = _indent_step(self._root)

    def put(self, place: Place, value: Content) -> str:
        key, node, rest = self._walk(place)
        if not rest:
            return self._splice(self._start(node), self._end(node), scalar(str(value), quoted=_is_quoted(node)))
        content = _nested(rest[1:], value)
        if isinstance(node, yaml.MappingNode) and node.value:
            return self._add(node, str(rest[0]), content)
        if isinstance(node, yaml.SequenceNode) and node.value:
            return self._append(node, content)
        if key is not None and self._text[self._start(node) : self._end(node)] in _NOTHING:
            column = key.start_mark.column + self._step
            lines = self._block({str(rest[0]): content}, column)
            start = self._text.index(":", self._end(key)) + 1
            end = max(start, self._end(node))
            comment = self._text[end : self._line_end(end)].rstrip()
            return self._splice(start, self._line_end(end), comment + self._newline + lines)
        return self._text

    def take(self, place: Place) -> str:
        """Removes an entry that has lines of its own. Any other leaves the text unchanged, and the check refuses it."""
        key, node, rest = self._walk(place)
        if rest or key is None or not self._is_first_on_line(key):
            return self._text
        start = self._start(key) - key.start_mark.column
        return self._splice(start, min(self._line_end(self._last(key, node)) + len(self._newline), len(self._text)), "")

    def _walk(self, place: Place) -> tuple[yaml.Node | None, yaml.Node, Place]:
        """Follows the place as far as nodes exist: the last key, its value, and the steps that are left."""
        key, node = None, self._root
        for depth, step in enumerate(place):
            entry = _entry(node, step)
            if entry is None:
                return key, node, place[depth:]
            key, node = entry
        return key, node, ()

    def _add(self, mapping: yaml.MappingNode, name: str, content: Content) -> str:
        first, last = mapping.value[0][0], mapping.value[-1]
        if mapping.flow_style:
            json_style = first.style == '"'
            inside = self._text[: self._end(mapping) - 1].rstrip()
            entry = f"{'' if inside.endswith(',') else ','} {_flow({name: content}, json_style)[1:-1]}"
            return self._splice(len(inside), len(inside), entry)
        column = first.start_mark.column
        lines = self._block({name: content}, column)
        leads = name in ("metadata", "schedulerName")
        if leads or self._ends_in_blockscalar(last[1]):
            start = self._start(first)
            return self._splice(start, start, lines.lstrip(" ") + self._newline + " " * column)
        end = self._line_end(self._last(*last))
        return self._splice(end, end, self._newline + lines)

    def _append(self, sequence: yaml.SequenceNode, content: Content) -> str:
        if sequence.flow_style:
            inside = self._text[: self._end(sequence) - 1].rstrip()
            comma = "" if inside.endswith(",") else ","
            entry = f"{comma} {_flow(content, json_style=_is_json(sequence.value[0]))}"
            return self._splice(len(inside), len(inside), entry)
        dash = self._text.rfind("-", 0, self._start(sequence.value[-1]))
        column = dash - (self._text.rfind("\n", 0, dash) + 1)
        end = self._line_end(self._last(sequence.value[-1], sequence.value[-1]))
        return self._splice(end, end, self._newline + self._block([content], column))

    def _block(self, content: Content, column: int) -> str:
        return self._newline.join(" " * column + line for line in _lines(content, self._step))

    def _last(self, key: yaml.Node, node: yaml.Node) -> int:
        """The end of an entry. An alias has the marks of the node that it refers to, so its own end is searched."""
        if self._start(node) < self._start(key):
            alias = re.compile(r"\s*:?\s*\*[^\s,\]}]+").match(self._text, self._end(key))
            return alias.end() if alias else self._end(key)
        if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
            inner = node.value[-1]
            return self._last(*(inner if isinstance(node, yaml.MappingNode) else (inner, inner)))
        return self._end(node)

    def _ends_in_blockscalar(self, node: yaml.Node) -> bool:
        """The end mark of a block scalar is beyond its last line, so nothing can be added after it."""
        while isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
            node = node.value[-1][1] if isinstance(node, yaml.MappingNode) else node.value[-1]
        return isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")

    def _is_first_on_line(self, node: yaml.Node) -> bool:
        start = self._start(node)
        return not self._text[start - node.start_mark.column : start].strip()

    def _start(self, node: yaml.Node) -> int:
        return int(node.start_mark.index) + self._shift

    def _end(self, node: yaml.Node) -> int:
        return int(node.end_mark.index) + self._shift

    def _line_end(self, index: int) -> int:
        end = self._text.find(self._newline, index)
        return len(self._text) if end < 0 else end

    def _splice(self, start: int, end: int, inserted: str) -> str:
        return self._text[:start] + inserted + self._text[end:]


def find_line(text: str, document: int, place: Place) -> int:
    """The line, counted from 1, of an entry; or of the last part of its place that exists."""
    node = list(yaml.compose_all(text.removeprefix("\ufeff"), Loader=yaml.SafeLoader))[document]
    line = node.start_mark.line if node is not None else 0
    for step in place:
        entry = _entry(node, step)
        if entry is None:
            break
        key, node = entry
        line = key.start_mark.line
    return int(line) + 1


def _entry(node: yaml.Node, step: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        return next(((key, value) for key, value in node.value if key.value == step), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step], node.value[step]
    return None


def _nested(steps: Place, value: Content) -> Content:
    for step in reversed(steps):
        value = [value] if isinstance(step, int) else {step: value}
    return value


def _indent_step(root: yaml.Node) -> int:
    """The indentation of the document's own mappings."""
    if isinstance(root, yaml.MappingNode) and not root.flow_style:
        for key, value in root.value:
            if isinstance(value, yaml.MappingNode) and not value.flow_style and value.value:
                return max(1, int(value.value[0][0].start_mark.column - key.start_mark.column))
    return 2


def _is_json(node: yaml.Node) -> bool:
    return isinstance(node, yaml.MappingNode) and bool(node.value) and node.value[0][0].style == '"'


def _is_quoted(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style in ('"', "'")


def scalar(text: str, *, quoted: bool = False) -> str:
    """Unquoted only if YAML 1.1 and 1.2 both read it as a string."""
    plain = _PLAIN.fullmatch(text) and not _NUMBER_LIKE.fullmatch(text) and len(text) > 1 and text[-1] != ":"
    if plain and not quoted and yaml.safe_load(text) == text:
        return text
    return str(yaml.safe_dump(text, default_style='"', allow_unicode=True, width=len(text) * 16 + 80)).rstrip("\n")


def _lines(content: Content, step: int) -> list[str]:
    if isinstance(content, str):
        return [scalar(content)]
    lines: list[str] = []
    if isinstance(content, list):
        for entry in content:
            first, *more = _lines(entry, step)
            lines += [f"- {first}", *(f"  {line}" for line in more)]
        return lines
    for key, value in content.items():
        if isinstance(value, str):
            lines.append(f"{scalar(key)}: {scalar(value)}")
        else:
            lines += [f"{scalar(key)}:", *(" " * step + line for line in _lines(value, step))]
    return lines


def _flow(content: Content, json_style: bool) -> str:
    if isinstance(content, str):
        return scalar(content, quoted=json_style)
    if isinstance(content, list):
        return f"[{', '.join(_flow(entry, json_style) for entry in content)}]"
    pairs = (f"{scalar(key, quoted=json_style)}: {_flow(value, json_style)}" for key, value in content.items())
    return f"{{{', '.join(pairs)}}}"
