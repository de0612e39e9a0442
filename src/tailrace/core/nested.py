"""Type names that hold other types, taken apart and put together: `struct<a:int>`, `array<int>`, `map<string,int>`.

`merged` gives the narrowest type that holds every value of two others exactly, or nothing if there is none.
A field whose name is not a plain word is quoted, as in SQL: `struct<`unit price`:int>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Widens = Callable[[str, str], bool]


def fields_of(kind: str) -> dict[str, str] | None:
    """Return the fields of a struct by name; `None` for anything else."""
    inside = _inside(kind, "struct")
    if inside is None:
        return None
    return dict(_field(text.strip()) for text in _split(inside))


def struct(fields: Mapping[str, str]) -> str:
    """Return the type of a struct with these fields."""
    return f"struct<{','.join(f'{_named(name)}:{kind}' for name, kind in fields.items())}>"


def quoted(name: str) -> str:
    """Return the name of a field as SQL reads it."""
    return "`" + name.replace("`", "``") + "`"


def names(kind: str) -> Iterator[str]:
    """Yield the names of all fields, anywhere inside."""
    for name, field in (fields_of(kind) or {}).items():
        yield name
        yield from names(field)
    for part in (element_of(kind), *(entry_of(kind) or ())):
        yield from names(part) if part else ()


def case_twins(kinds: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield fields of one struct, anywhere inside `kinds` of one column, whose names differ only in case."""
    structs = [fields for kind in kinds if (fields := fields_of(kind)) is not None]
    every = dict.fromkeys(name for fields in structs for name in fields)
    seen: dict[str, str] = {}
    for name in every:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            yield other, name
        yield from case_twins([fields[name] for fields in structs if name in fields])
    inside = [[element_of(kind), *(entry_of(kind) or (None, None))] for kind in kinds]
    for parts in zip(*inside, strict=True):
        if held := [part for part in parts if part is not None]:
            yield from case_twins(held)


def element_of(kind: str) -> str | None:
    """Return the type of an array's elements; `None` for anything else."""
    return _inside(kind, "array")


def entry_of(kind: str) -> tuple[str, str] | None:
    """Return the types of a map's keys and values; `None` for anything else."""
    inside = _inside(kind, "map")
    if inside is None:
        return None
    key, value = _split(inside)
    return key.strip(), value.strip()


def holds_map(kind: str) -> bool:
    """Say whether there is a map anywhere in `kind`; such values have no order."""
    return _UNORDERED.search(kind) is not None


_UNORDERED = re.compile(r"(?:^|[<:,]\s*)(?:map<|variant(?:$|[,>]))")
"""A type, and no field that is called so."""


def merged(old: str, new: str, widens: Widens) -> str | None:
    """Return the type that holds what `old` and `new` hold, the fields of `old` first; `None` if there is none."""
    if widens(old, new):
        return new
    if widens(new, old):
        return old
    old_fields, new_fields = fields_of(old), fields_of(new)
    if old_fields is not None and new_fields is not None:
        both = {**new_fields, **old_fields}
        every = {
            name: merged(old_fields[name], new_fields[name], widens)
            if name in old_fields and name in new_fields
            else both[name]
            for name in [*old_fields, *(name for name in new_fields if name not in old_fields)]
        }
        held = {name: kind for name, kind in every.items() if kind is not None}
        return struct(held) if len(held) == len(every) else None
    old_element, new_element = element_of(old), element_of(new)
    if old_element is not None and new_element is not None:
        element = merged(old_element, new_element, widens)
        return element and f"array<{element}>"
    old_entry, new_entry = entry_of(old), entry_of(new)
    if old_entry is not None and new_entry is not None and old_entry[0] == new_entry[0]:
        value = merged(old_entry[1], new_entry[1], widens)
        return value and f"map<{old_entry[0]},{value}>"
    return None


def lost(old: str, new: str) -> list[str]:
    """Return the fields, anywhere inside, that `old` has and `new` has not, as paths."""
    return [path for path, _ in _missing(old, new)]


def added(old: str, new: str) -> list[tuple[str, str]]:
    """Return the fields, anywhere inside, that `new` has and `old` has not, as paths in SQL with their types."""
    return list(_missing(new, old))


def changed(old: str, new: str, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield what has another type in `new` than in `old`, the innermost, as paths in SQL with their new types."""
    old_fields, new_fields = fields_of(old), fields_of(new)
    old_entry, new_entry = entry_of(old), entry_of(new)
    old_element, new_element = element_of(old), element_of(new)
    dot = f"{path}." if path else ""
    if old_fields is not None and new_fields is not None:
        for name in old_fields.keys() & new_fields.keys():
            yield from changed(old_fields[name], new_fields[name], f"{dot}{quoted(name)}")
    elif old_element is not None and new_element is not None:
        yield from changed(old_element, new_element, f"{dot}element")
    elif old_entry is not None and new_entry is not None:
        yield from changed(old_entry[1], new_entry[1], f"{dot}value")
    elif old != new:
        yield path, new


def _missing(have: str, other: str, path: str = "") -> Iterator[tuple[str, str]]:
    have_fields, other_fields = fields_of(have), fields_of(other)
    if have_fields is not None and other_fields is not None:
        for name, kind in have_fields.items():
            inner = f"{path}.{quoted(name)}" if path else quoted(name)
            if name in other_fields:
                yield from _missing(kind, other_fields[name], inner)
            else:
                yield inner, kind
    have_element, other_element = element_of(have), element_of(other)
    if have_element is not None and other_element is not None:
        yield from _missing(have_element, other_element, f"{path}.element" if path else "element")
    have_entry, other_entry = entry_of(have), entry_of(other)
    if have_entry is not None and other_entry is not None:
        yield from _missing(have_entry[1], other_entry[1], f"{path}.value" if path else "value")


def _inside(kind: str, name: str) -> str | None:
    return kind[len(name) + 1 : -1] if kind.startswith(f"{name}<") and kind.endswith(">") else None


def _named(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quoted(name)


def _field(text: str) -> tuple[str, str]:
    """Take `name:type` apart, whether the name is quoted or not."""
    if not text.startswith("`"):
        name, kind = text.split(":", 1)
        return name.strip(), kind.strip()
    end = re.match(r"`(?:[^`]|``)*`", text)
    if end is None:
        raise ValueError(f"no end of the name in {text!r}")
    return end.group()[1:-1].replace("``", "`"), text[end.end() :].strip().removeprefix(":").strip()


def _split(text: str) -> list[str]:
    """Split at the commas that are not inside another type."""
    parts, depth, start, inside_quotes = [], 0, 0, False
    for at, char in enumerate(text):
        inside_quotes ^= char == "`"
        if inside_quotes:
            continue
        depth += (char in "<(") - (char in ">)")
        if char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]] if text else []
