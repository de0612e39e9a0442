"""Type names that hold other types, taken apart and put together: `struct<a:int>`, `array<int>`, `map<string,int>`.

`merged` gives the narrowest type that holds every value of two others exactly, or nothing if there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

Widens = Callable[[str, str], bool]


def fields_of(kind: str) -> dict[str, str] | None:
    """Return the fields of a struct by name; `None` for anything else."""
    inside = _inside(kind, "struct")
    if inside is None:
        return None
    pairs = (field.split(":", 1) for field in _split(inside))
    return {name.strip(): field.strip() for name, field in pairs}


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
    return "map<" in kind or "variant" in kind


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
        return None if None in every.values() else f"struct<{','.join(f'{n}:{t}' for n, t in every.items())}>"
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
            yield from changed(old_fields[name], new_fields[name], f"{dot}`{name}`")
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
            quoted = f"{path}.`{name}`" if path else f"`{name}`"
            if name in other_fields:
                yield from _missing(kind, other_fields[name], quoted)
            else:
                yield quoted, kind
    have_element, other_element = element_of(have), element_of(other)
    if have_element is not None and other_element is not None:
        yield from _missing(have_element, other_element, f"{path}.element" if path else "element")
    have_entry, other_entry = entry_of(have), entry_of(other)
    if have_entry is not None and other_entry is not None:
        yield from _missing(have_entry[1], other_entry[1], f"{path}.value" if path else "value")


def _inside(kind: str, name: str) -> str | None:
    return kind[len(name) + 1 : -1] if kind.startswith(f"{name}<") and kind.endswith(">") else None


def _split(text: str) -> list[str]:
    """Split at the commas that are not inside another type."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "<(") - (char in ">)")
        if char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]] if text else []
