"""`cdc files`: what became of the files of a feed, and having some of them read again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tailrace.runtime.build import Pipeline

app = typer.Typer(name="files", help="The audit of a feed of files.", no_args_is_help=True)

PipelineFile = Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline file with source_type: files.")]
PlatformFile = Annotated[Path | None, typer.Option("--platform-config", metavar="FILE", help="The platform file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def status(
    file: PipelineFile,
    *,
    every: Annotated[bool, typer.Option("--all", help="Also list the files that are committed.")] = False,
    platform_config: PlatformFile = None,
    json: Json = False,
) -> None:
    """Show how many files are in which state, and those that are not committed."""
    from tailrace.cli import show

    with _opened(file, platform_config) as pipeline:
        show.tree(pipeline.files_status(every=every), json_wanted=json)


@app.command()
def requeue(
    file: PipelineFile,
    name: Annotated[str | None, typer.Argument(metavar="NAME|HASH", help="Which file.")] = None,
    *,
    failed: Annotated[bool, typer.Option("--failed", help="All files that failed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which.")] = False,
    platform_config: PlatformFile = None,
    json: Json = False,
) -> None:
    """Have files read again.

    The next slices of a run apply them. Their rows keep their place in the order: one that is older than what a
    target has changes nothing.
    """
    from tailrace.cli import show

    if (name is None) is not failed:
        raise typer.BadParameter("give the name or hash of a file, or --failed")
    with _opened(file, platform_config) as pipeline:
        done = pipeline.files_requeue(name, failed=failed, dry_run=dry_run)
        show.rows(done, json_wanted=json, none="no file has failed")


@app.command()
def lineage(
    file: PipelineFile,
    name: Annotated[str, typer.Argument(metavar="NAME|HASH", help="Which file.")],
    *,
    platform_config: PlatformFile = None,
    json: Json = False,
) -> None:
    """Show what a file did: in each target the commit, and the rows that are still as it left them."""
    from tailrace.cli import show

    with _opened(file, platform_config) as pipeline:
        show.rows(pipeline.files_lineage(name), json_wanted=json, none="nothing")


def _opened(file: Path, platform_config: Path | None) -> Pipeline:
    from tailrace.cli import files
    from tailrace.runtime.build import open_pipeline

    loaded = files.load(file, platform_config)
    return open_pipeline(loaded.pipeline.config, loaded.platform.config)
