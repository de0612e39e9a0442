"""A pipeline in its other layout, with a `target` and a `transform`, rewritten to the one with `sinks` and `cdc`.

    pipeline_name, source, source_query, target, transform.cdc  ──▶  pipeline_id, source, cdc, sinks

A pure function of a document whose variables are expanded. Every value keeps the place where it was written, and
what has no counterpart is a problem: nothing is left out in silence. See ADR 12.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tailrace.config.address import KEYS, KINDS, SETTINGS, taken_apart
from tailrace.config.document import Document, Node
from tailrace.config.model import Loc, fields_of
from tailrace.config.pipeline import CdcConfig, TableConfig
from tailrace.config.platform import PlatformConfig
from tailrace.config.plugin import Kind, options_of
from tailrace.config.problem import Problem, quoted
from tailrace.config.validation import unknown_key
from tailrace.core.errors import Misconfigured
from tailrace.core.table import table_called

_TOP = ("pipeline_name", "topic_prefix", "source", "source_query", "source_table", "target", "targets", "transform")
_OTHER_LAYOUT = {"pipeline_id", "sinks"}
_OF_TARGETS = ("delete_mode", "soft_delete_column", "schema_evolution")
"""What `transform.cdc` says of every target."""
_OF_CDC = (*fields_of(CdcConfig), *_OF_TARGETS)
_OF_SINK = ("sink_id", "enabled", "mode", *_OF_TARGETS, "retry")
_OF_TABLE = ("schema", *fields_of(TableConfig))
_UNKNOWN = {"database": "unknown", "username": "unknown"}
"""In place of a url that cannot be read, so that it is not told to be incomplete as well."""
_WORDS = {
    "mode": {"cdc": "scd1"},
    "schema_evolution": {"warn": "skip", "alter_table": "alter"},
}
"""This layout's words for ours."""

_NOT_YET: dict[Loc, str] = {
    ("sources",): "Write one pipeline for each source.",
    ("state_store",): "State lies with the rows and under control.root of the platform. Remove the key.",
    ("transform", "sql"): "Transform the rows where they are read.",
    ("transform", "lookups"): "Join the tables where they are read.",
    ("transform", "window"): "Aggregate the rows where they are read.",
    ("transform", "join"): "Join the tables where they are read.",
    ("transform", "cdc", "on_conflict"): "A change replaces the row that is there. Remove the key.",
}


def has_target_layout(document: Document) -> bool:
    """Say whether `document` is in this layout, by its top keys."""
    own = document.data.keys() & set(_TOP) - {"topic_prefix", "source"}
    return bool(own) and not _OTHER_LAYOUT & document.data.keys()


def with_sinks(document: Document, problems: list[Problem]) -> Document | None:
    """Return `document` in the other layout; `None`, and why in `problems`, if too little of it is there."""
    return _Rewrite(document, problems).whole()


class _Rewrite:
    def __init__(self, old: Document, problems: list[Problem]) -> None:
        self.old = old
        self.problems = problems
        self.unreadable = {problem.loc for problem in problems}
        places = (dict(old.values), dict(old.keys), set(old.expanded), set(old.outside))
        self.new = Document(old.name, {}, *places)

    def whole(self) -> Document | None:
        self.refuse((), _TOP, beside=PlatformConfig.model_fields)
        targets = self.targets()
        source = self.section(("source",))
        cdc = self.cdc()
        if "pipeline_name" not in self.old.data:
            self.missing((), "pipeline_name")
        if not (targets and source and cdc is not None and "pipeline_name" in self.old.data):
            return None
        self.move(("pipeline_name",), ("pipeline_id",))
        for key in self.old.data.keys() & {"topic_prefix", *PlatformConfig.model_fields}:
            self.move((key,), (key,))
        self.source(source, cdc)
        self.same_place(("cdc",), ("transform", "cdc"))
        for key in cdc.keys() & fields_of(CdcConfig).keys():
            self.move(("transform", "cdc", key), ("cdc", key))
        self.new.data["sinks"] = [{} for _ in targets]
        for index, loc in enumerate(targets):
            _Sink(self, loc, ("sinks", index), cdc).write()
        return self.new

    # -- the sections

    def targets(self) -> list[Loc]:
        if "target" in self.old.data and "targets" in self.old.data:
            text = "target and targets say the same"
            self.problems.append(Problem("wrong-value", ("targets",), text, "Remove one of the two.", at_key=True))
            return []
        if "targets" not in self.old.data:
            return [("target",)] if self.section(("target",)) else []
        listed = self.old.data["targets"]
        if not isinstance(listed, list) or not listed:
            hint = "Write [[targets]] once for each."
            self.problems.append(Problem("wrong-value", ("targets",), '"targets" should be a list of targets', hint))
            return []
        locs: list[Loc] = [("targets", index) for index in range(len(listed))]
        sections = [self.section(loc) for loc in locs]
        return [] if None in sections else locs

    def section(self, loc: Loc) -> dict[str, Node] | None:
        """Return the source or target at `loc`, if it is a section that says its kind."""
        try:
            found = self.old.at(loc)
        except KeyError:
            self.missing(loc[:-1], str(loc[-1]))
            return None
        if not isinstance(found, dict):
            text = f"{quoted(loc[0])} should be a section with a kind and the keys of its kind"
            self.problems.append(Problem("wrong-value", loc, text))
            return None
        if not isinstance(found.get("kind"), str):
            self.missing(loc, "kind")
            return None
        return found

    def cdc(self) -> dict[str, Node] | None:
        transform = self.old.data.get("transform", {})
        cdc = transform.get("cdc", {}) if isinstance(transform, dict) else None
        if not isinstance(transform, dict) or not isinstance(cdc, dict):
            loc: Loc = ("transform", "cdc") if isinstance(transform, dict) else ("transform",)
            self.problems.append(Problem("wrong-value", loc, f"{quoted(loc[-1])} should be a section"))
            return None
        self.refuse(("transform",), ("cdc",))
        self.refuse(("transform", "cdc"), _OF_CDC)
        return cdc

    def source(self, source: dict[str, Node], cdc: dict[str, Node]) -> None:
        kind = source["kind"]
        self.move(("source", "kind"), ("source", "source_type"))
        self.settings(Kind.SOURCE, ("source",), ("source",), ("kind",))
        listed = "topics" if kind == "kafka" else "tables"
        if "source_query" in self.old.data:
            if listed in source:
                text = f"source_query and {listed} of the source say the same"
                self.problems.append(Problem("wrong-value", ("source", listed), text, "Remove one of the two."))
            self.put(("source", listed), [self.old.data["source_query"]], ("source_query",))
            self.same_place(("source", listed, 0), ("source_query",))
        if "source_table" in self.old.data and (kind != "kafka" or cdc.get("envelope") == "custom"):
            text = "source_table has no meaning here: the source, or the topic, is asked for the table by its name"
            self.problems.append(Problem("wrong-value", ("source_table",), text, "Remove the key.", at_key=True))
        if kind != "kafka":
            return
        transform = self.old.data.get("transform")
        if not isinstance(transform, dict) or "cdc" not in transform:
            text = "a pipeline without transform.cdc, which copies messages as they are, is not in this release"
            hint = 'Say how messages are opened: envelope = "debezium" in a section transform.cdc.'
            self.problems.append(Problem("not-available", (), text, hint, at_key=True))
        if "source_table" in self.old.data and "tables" not in source and cdc.get("envelope") != "custom":
            self.put(("source", "tables"), [self.old.data["source_table"]], ("source_table",))

    def settings(self, kind: Kind, loc: Loc, to: Loc, own: tuple[str, ...]) -> None:
        """Move the keys of the plugin from `loc` to `to`, a `url` as what it consists of; the `own` ones stay."""
        section = self.old.at(loc)
        if not isinstance(section, dict):
            raise TypeError("not a section")
        address = ("url",) if section["kind"] in KINDS else ()
        options = _options(kind, section["kind"])
        for key, value in section.items():
            if key in address:
                self.login(section, value, (*loc, key), to)
            elif options and key not in {*options, *own}:
                self.problems.append(unknown_key((*loc, key), {*options, *own, *address}))
            elif key not in own:
                self.move((*loc, key), (*to, key))
        if kind is Kind.TARGET and address and not section.keys() & {"url", "username"}:
            self.missing(loc, "username")

    def login(self, section: dict[str, Node], url: Node, loc: Loc, to: Loc) -> None:
        for key in section.keys() & set(KEYS):
            text = f"url and {key} say the same"
            self.problems.append(Problem("wrong-value", (*loc[:-1], key), text, "Remove one of the two."))
        found = dict(_UNKNOWN) if loc in self.unreadable else self.parts(url, loc)
        for key, text in found.items():
            self.put((*to, key), text, loc)
            self.new.expanded.add((*to, key))

    def parts(self, url: Node, loc: Loc) -> dict[str, str]:
        found = taken_apart(str(url))
        if found is None:
            hint = "Write postgresql://user:password@host:port/database, each part with % for what is special in a URL."
            self.problems.append(Problem("wrong-value", loc, '"url" is not the address of a database', hint))
            return dict(_UNKNOWN)
        if found.pop(SETTINGS, ""):
            text = "settings after the question mark of a url are not in this release"
            self.problems.append(Problem("not-available", loc, text, "Leave them out."))
        if "username" not in found and loc[0] != "source":
            # The default is for files that name each part: an address without a user was cut short.
            self.missing(loc[:-1], "username")
        return found

    # -- writing

    def refuse(self, loc: Loc, known: tuple[str, ...], beside: Collection[str] = ()) -> None:
        """Tell of each key of the section at `loc` that is not `known`; of those `beside`, others do."""
        try:
            section = self.old.at(loc)
        except KeyError:
            return
        for key in section if isinstance(section, dict) else ():
            here = (*loc, key)
            if here in _NOT_YET:
                name = ".".join(str(step) for step in here)
                text = f"{name} is not in this release"
                self.problems.append(Problem("not-available", here, text, _NOT_YET[here], at_key=True))
            elif key not in known and key not in beside:
                self.problems.append(unknown_key(here, known))

    def missing(self, loc: Loc, key: str) -> None:
        text = f"key {quoted(key)} is missing"
        self.problems.append(Problem("missing-setting", loc, text, f"Add {key}.", at_key=True))

    def move(self, loc: Loc, to: Loc) -> None:
        """Put the value at `loc` to `to`; everything in it keeps its place."""
        self.put(to, self.old.at(loc), loc)
        for inner in list(self.old.values):
            if inner[: len(loc)] == loc:
                self.same_place((*to, *inner[len(loc) :]), inner)

    def put(self, to: Loc, value: Node, loc: Loc) -> None:
        """Put `value`, which comes from `loc`, to `to`."""
        node: Node = self.new.data
        for step in to[:-1]:
            node = node.setdefault(str(step), {}) if isinstance(node, dict) else node[step]  # type: ignore[index]
        node[to[-1]] = value  # type: ignore[index]
        self.same_place(to, loc)

    def same_place(self, to: Loc, loc: Loc) -> None:
        if place := self.old.place(loc):
            self.new.values[to] = place
        if loc in self.old.keys:
            self.new.keys[to] = self.old.keys[loc]
        for marked, before in ((self.new.expanded, self.old.expanded), (self.new.outside, self.old.outside)):
            if loc in before:
                marked.add(to)


@dataclass(frozen=True, slots=True)
class _Sink:
    """One target, written as a sink."""

    rewrite: _Rewrite
    loc: Loc
    to: Loc
    cdc: dict[str, Node]

    def write(self) -> None:
        target = self.rewrite.old.at(self.loc)
        if not isinstance(target, dict):
            raise TypeError("not a section")
        kind = str(target["kind"])
        for section in (self.to, (*self.to, kind)):
            self.rewrite.same_place(section, self.loc)
        self.rewrite.move((*self.loc, "kind"), (*self.to, "sink_type"))
        # One target needs no name of its own: its kind is one, and every spelling knows it.
        self.rewrite.move((*self.loc, "sink_id" if "sink_id" in target else "kind"), (*self.to, "sink_id"))
        said = {key: ("transform", "cdc", key) for key in _OF_TARGETS if key in self.cdc}
        own = {key: (*self.loc, key) for key in _OF_SINK if key in target and key != "sink_id"}
        for key, loc in {**said, **own}.items():
            self.rewrite.move(loc, (*self.to, key))
            value = self.rewrite.old.at(loc)
            if isinstance(value, str) and value in _WORDS.get(key, {}):
                self.rewrite.put((*self.to, key), _WORDS[key][value], loc)
        self.rewrite.settings(Kind.TARGET, self.loc, (*self.to, kind), ("kind", "table", *_OF_SINK))
        if "table" in target:
            self.table(target["table"], kind)

    def table(self, table: Node, kind: str) -> None:
        here = (*self.loc, "table")
        if not isinstance(table, dict):
            self.rewrite.problems.append(Problem("wrong-value", here, '"table" should be a section'))
            return
        self.rewrite.refuse(here, _OF_TABLE)
        if "schema" in table:
            self.rewrite.move((*here, "schema"), (*self.to, kind, "schema"))
        settings = [key for key in fields_of(TableConfig) if key in table]
        name = self.source_table() if settings else None
        if not settings or name is None:
            return
        place = (*self.to, "tables", name)
        self.rewrite.put(place, {}, here)
        for key in settings:
            self.rewrite.move((*here, key), (*place, key))
        columns = table.get("columns")
        if isinstance(columns, list) and (flag := self.flag()) in columns:
            # The mark of a deleted row is a column of the target alone.
            self.rewrite.put((*place, "columns"), [c for c in columns if c != flag], (*here, "columns"))

    def flag(self) -> Node:
        sink = self.rewrite.new.at(self.to)
        soft = isinstance(sink, dict) and sink.get("delete_mode") == "soft"
        return sink.get("soft_delete_column", "deleted_at") if soft and isinstance(sink, dict) else None

    def source_table(self) -> str | None:
        """Return the name that the source has for the table: as it is written, or as the topic is called."""
        data = self.rewrite.old.data
        source, query = data["source"], data.get("source_query")
        kind = source["kind"] if isinstance(source, dict) else None
        if isinstance(data.get("source_table"), str):
            return str(data["source_table"])
        if not isinstance(query, str):
            self.rewrite.missing((), "source_query")
            return None
        if kind != "kafka" or self.cdc.get("envelope") == "custom":
            return query
        if (name := table_called(query)) is None:
            text = f"topic {quoted(query)} does not say which table it holds"
            hint = "Add source_table, as schema.table."
            self.rewrite.problems.append(Problem("missing-setting", ("source_query",), text, hint))
        return name


def _options(kind: Kind, name: Node) -> set[str]:
    """Return the keys of a plugin; none if there is no such plugin, which is told elsewhere."""
    try:
        return set(fields_of(options_of(kind, str(name))))
    except Misconfigured:
        return set()
