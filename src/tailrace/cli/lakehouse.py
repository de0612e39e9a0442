"""`cdc lakehouse`: what the tables of Delta and Iceberg were, going back there, and tidying up."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tailrace.runtime.build import Pipeline

app = typer.Typer(
    name="lakehouse", help="Tables of Delta and Iceberg: their past, and their files.", no_args_is_help=True
)

PipelineFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="The pipeline file, or package.module:name.", show_default=False)
]
PlatformFile = Annotated[
    Path | None,
    typer.Option("--platform-config", metavar="FILE", help="The platform file; without it, the defaults."),
]
Target = Annotated[str | None, typer.Option("--target", metavar="ID", help="Which target, if there are several.")]
Table = Annotated[
    str | None, typer.Option("--table", metavar="TABLE", help="Which table, by its name in the source or the target.")
]
Snapshot = Annotated[
    int | None, typer.Option("--snapshot-id", metavar="N", help="A snapshot of Iceberg or a version of Delta.")
]
AsOf = Annotated[
    datetime.datetime | None,
    typer.Option(
        "--as-of",
        metavar="TIME",
        help="The last snapshot at this time, in UTC.",
        formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f"],
    ),
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="How many at most.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def snapshots(
    file: PipelineFile,
    *,
    platform_config: PlatformFile = None,
    target: Target = None,
    table: Table = None,
    limit: Limit = 20,
    json: Json = False,
) -> None:
    """List what each table was, the latest first, and the mark that each commit carries."""
    from tailrace.cli import show

    with _opened(file, platform_config) as pipeline:
        show.rows(pipeline.lakehouse().snapshots(target, table, limit), json_wanted=json, none="no snapshots")


@app.command()
def query(
    file: PipelineFile,
    *,
    platform_config: PlatformFile = None,
    target: Target = None,
    table: Table = None,
    snapshot_id: Snapshot = None,
    as_of: AsOf = None,
    sql: Annotated[
        str | None, typer.Option("--sql", metavar="SELECT", help="A query of tables by their names in the target.")
    ] = None,
    limit: Limit = 100,
    json: Json = False,
) -> None:
    """Show rows of a table, as it is or as it was. Changes nothing.

    With --sql, what a query says; the table that --table names is then as it was at --snapshot-id or --as-of, and the
    others are as they are.
    """
    from tailrace.cli import show
    from tailrace.runtime.lakehouse import Moment

    with _opened(file, platform_config) as pipeline:
        when = Moment(snapshot_id, _utc(as_of, snapshot_id))
        found = pipeline.lakehouse().query(target, table, when, sql, limit)
        show.rows(found, json_wanted=json, none="no rows")


@app.command()
def rollback(
    file: PipelineFile,
    *,
    platform_config: PlatformFile = None,
    target: Target = None,
    table: Table = None,
    snapshot_id: Snapshot = None,
    as_of: AsOf = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Take a table back to what it was; its mark goes with it.

    The next run applies the change log from there, and the table is current again. Refused if the log no longer has
    what would be needed. The pipeline must not be running.
    """
    from tailrace.cli import show
    from tailrace.runtime.lakehouse import Moment

    when = Moment(snapshot_id, _utc(as_of, snapshot_id))
    if snapshot_id is None and as_of is None:
        raise typer.BadParameter("give --snapshot-id or --as-of")
    if not yes:
        typer.confirm("Readers will see the table as it was then. Go on?", abort=True, err=True)
    with _opened(file, platform_config) as pipeline:
        show.tree(pipeline.lakehouse().rollback(target, table, when), json_wanted=json)


@app.command()
def compact(
    file: PipelineFile,
    *,
    platform_config: PlatformFile = None,
    target: Target = None,
    table: Table = None,
    file_threshold: Annotated[
        int | None,
        typer.Option(metavar="N", min=2, help="How many files must lie together; else as the sink's maintenance says."),
    ] = None,
    json: Json = False,
) -> None:
    """Join small files, those of a partition together. Changes no row.

    The pipeline must not be running; a run does it by itself with maintenance.enabled.
    """
    from tailrace.cli import show

    with _opened(file, platform_config) as pipeline:
        show.rows(pipeline.lakehouse().compact(target, table, file_threshold), json_wanted=json, none="no tables")


@app.command()
def expire(
    file: PipelineFile,
    *,
    platform_config: PlatformFile = None,
    target: Target = None,
    table: Table = None,
    older_than_seconds: Annotated[
        float | None, typer.Option(metavar="N", min=0, help="From which age on; else as the sink's maintenance says.")
    ] = None,
    json: Json = False,
) -> None:
    """Let go of what tables were long ago. Their marks stay.

    The pipeline must not be running; a run does it by itself with maintenance.enabled. Readers of a snapshot that is
    let go of fail.
    """
    from tailrace.cli import show

    with _opened(file, platform_config) as pipeline:
        show.rows(pipeline.lakehouse().expire(target, table, older_than_seconds), json_wanted=json, none="no tables")


def _utc(given: datetime.datetime | None, snapshot: int | None) -> datetime.datetime | None:
    if given is not None and snapshot is not None:
        raise typer.BadParameter("give --snapshot-id or --as-of, not both")
    return given and given.replace(tzinfo=datetime.UTC)


def _opened(file: Path, platform_config: Path | None) -> Pipeline:
    from tailrace.cli import files
    from tailrace.runtime.build import open_pipeline

    loaded = files.load(file, platform_config)
    return open_pipeline(loaded.pipeline.config, loaded.platform.config)
