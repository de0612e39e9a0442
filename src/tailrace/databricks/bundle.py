"""The Asset Bundle for a pipeline that lands in bronze tables: text in, files out, the same for the same.

Nothing here connects to Databricks. No secret passes through: the deploy key is named, and never asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.resources import files as resource_files
from importlib.resources.abc import Traversable
from pathlib import Path

import yaml

from tailrace.config.pipeline import PipelineConfig
from tailrace.control.state import replace_whole
from tailrace.core.errors import Misconfigured
from tailrace.core.table import Evolution
from tailrace.databricks.dashboard import dashboard
from tailrace.databricks.silver import quote, silver_of, table_names
from tailrace.runtime.landed import LandedTables
from tailrace.sources.convex import Options as Convex
from tailrace.targets import staging
from tailrace.targets.bronze import checkpoints
from tailrace.targets.bronze.columns import create_statement, notes, owner_of

MANIFEST = ".tailrace-bundle.json"
"""Lists the files that were written, so that the next time removes those that are no more."""

_USE = "USE CATALOG IDENTIFIER(:catalog);\nUSE SCHEMA IDENTIFIER(:schema);\n\n"
_S3_VARIABLES = """  s3_schema:
    description: Holds the views of what was published to S3
    default: {schema}
  s3_root:
    description: Where "cdc convex publish" puts its versions
    default: {root}
  storage_credential:
    description: The storage credential of Unity Catalog that may read there
"""
_S3_ROW = "| S3: external location and views | `resources/s3.yml`, `src/ddl/s3_views.sql` |\n"


def written(landed: LandedTables) -> dict[str, str]:
    """Return every file of the bundle, by its path in it."""
    flows = silver_of(landed)
    root = _published(landed.pipeline)
    words = _words(landed, root)
    found = {path: _filled(text, words) for path, text in _templates().items() if root or "s3" not in path}
    found["src/pipeline.yaml"] = _pipeline(landed)
    found["src/ddl/control.sql"] = (
        f"{_USE}{checkpoints.create_statement(checkpoints.NAME)};\n\n"
        f"{checkpoints.view_statement(checkpoints.LATEST, checkpoints.NAME)};\n"
    )
    found["src/ddl/bronze.sql"] = _USE + "\n".join(_bronze(landed))
    found["src/dashboard.lvdash.json"] = dashboard({table: landed.names[table] for table in sorted(landed.shapes)})
    for flow in flows:
        found[f"src/silver/{flow.name}.sql"] = flow.sql()
    if root:
        found["src/ddl/s3_views.sql"] = _USE + _views(landed)
    return dict(sorted(found.items()))


def write(found: Mapping[str, str], out: Path) -> list[str]:
    """Write the files to `out`, and remove those of the last time that are no more; return their paths."""
    manifest = out / MANIFEST
    if out.exists() and not manifest.exists() and any(out.iterdir()):
        raise Misconfigured(
            "foreign-folder",
            f'the folder "{out}" has files, and none of them is of a bundle that we wrote',
            "Name a new or empty folder with --out, or one that a bundle was written to before.",
        )
    before = _listed(manifest) if manifest.exists() else []
    out.mkdir(parents=True, exist_ok=True)
    # First the list of both: after a crash, the next time knows all that may be there.
    _list(manifest, {*before, *found})
    for path, text in found.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(text)
    for path in set(before) - set(found):
        (out / path).unlink(missing_ok=True)
    _list(manifest, found)
    return sorted(found)


def _list(manifest: Path, paths: Iterable[str]) -> None:
    replace_whole(manifest, (json.dumps({"files": sorted(paths)}, indent=1) + "\n").encode())


def _listed(manifest: Path) -> list[str]:
    """Return the files of the last time; a path that leads out of the bundle is none of them, whoever wrote it."""
    try:
        paths = [Path(path) for path in json.loads(manifest.read_text())["files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise Misconfigured(
            "foreign-folder",
            f'the file "{manifest}" does not list the files of a bundle',
            "Name a new or empty folder with --out, or remove what is in this one.",
        ) from error
    return [path.as_posix() for path in paths if not path.is_absolute() and ".." not in path.parts]


def _templates() -> dict[str, str]:
    found: dict[str, str] = {}

    def walk(folder: Traversable, path: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                walk(entry, f"{path}{entry.name}/")
            else:
                found[f"{path}{entry.name.removesuffix('.in')}"] = entry.read_text()

    walk(resource_files("tailrace.databricks") / "templates", "")
    return found


def _filled(text: str, words: Mapping[str, str]) -> str:
    for name, value in words.items():
        text = text.replace(f"@@{name}@@", value)
    return text


def _words(landed: LandedTables, root: str) -> dict[str, str]:
    pipeline = landed.pipeline.pipeline_id
    plain = pipeline.replace("-", "_")
    *catalog, schema = landed.options.catalog.split(".") if landed.options.catalog else [f"{plain}_bronze"]
    return {
        "PIPELINE": pipeline,
        "CATALOG": catalog[0] if catalog else "main",
        "BRONZE": schema,
        "SILVER": f"{plain}_silver",
        "S3_VARIABLES": _S3_VARIABLES.format(schema=f"{plain}_published", root=json.dumps(root)) if root else "",
        "S3_ROW": _S3_ROW if root else "",
    }


def _published(pipeline: PipelineConfig) -> str:
    """Return where in S3 the pipeline publishes; nothing if it does not."""
    for sink in pipeline.enabled_sinks:
        if isinstance(sink.options, staging.Options) and (sink.options.publish_to or "").startswith("s3://"):
            return str(sink.options.publish_to).rstrip("/")
    return ""


def _pipeline(landed: LandedTables) -> str:
    """Return the pipeline as the extractor runs it: the source, and the bronze sink alone."""
    source = landed.pipeline.source.options
    if not isinstance(source, Convex):
        raise TypeError("bronze tables are of Convex")
    told: dict[str, object] = {"source_type": "convex", "deployment_url": source.deployment_url}
    told["deploy_key"] = "${CONVEX_DEPLOY_KEY}"
    told |= {name: getattr(source, name) for name in ("selection", "client_name") if getattr(source, name)}
    sink: dict[str, object] = {"sink_id": landed.sink_id, "sink_type": "bronze"}
    if landed.sink.schema_evolution is Evolution.FAIL:
        sink["schema_evolution"] = Evolution.FAIL.value
    if landed.sink.tables:
        dumped = {name: one.model_dump(mode="json", exclude_none=True) for name, one in landed.sink.tables.items()}
        sink["tables"] = dumped
    sink["bronze"] = {"catalog": "${TAILRACE_BRONZE}"}
    document = {
        "pipeline_id": landed.pipeline.pipeline_id,
        "topic_prefix": landed.pipeline.topic_prefix,
        "source": told,
        "sinks": [sink],
    }
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def _bronze(landed: LandedTables) -> list[str]:
    pipeline = landed.pipeline.pipeline_id
    return [
        create_statement(
            quote(landed.names[table]), landed.shapes[table], owner_of(pipeline, landed.sink_id, table), notes()
        )
        + ";\n"
        for table in sorted(landed.shapes)
    ]


def _views(landed: LandedTables) -> str:
    """Return a view of each table; as text that is put together there, because a view takes no parameter."""
    names, files = table_names(landed.shapes, {}), _staged_names(landed)
    return "DECLARE OR REPLACE VARIABLE made STRING;\n\n" + "\n".join(
        f"SET VARIABLE made = {_literal(f'CREATE OR REPLACE VIEW {quote(name)} AS SELECT * FROM read_files(')}\n"
        f"  || {_QUOTE} || :s3_root || {_literal(f'/staging/current/{staging.key_of(files[table])}')} || {_QUOTE}\n"
        f"  || {_literal(', format => ')} || {_QUOTE} || 'parquet' || {_QUOTE} || ')';\n"
        "EXECUTE IMMEDIATE made;\n"
        for table, name in sorted(names.items())
    )


def _staged_names(landed: LandedTables) -> dict[str, str]:
    sinks = (sink for sink in landed.pipeline.enabled_sinks if isinstance(sink.options, staging.Options))
    return next(sinks).names(tuple(landed.shapes))


_QUOTE = "chr(39)"


def _literal(text: str) -> str:
    if "'" in text or "\\" in text:
        raise ValueError(f"not a text for SQL: {text!r}")
    return f"'{text}'"
