"""`cdc dlq`: events that could not be applied, and what becomes of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tailrace.runtime.build import Pipeline

app = typer.Typer(name="dlq", help="Dead letters: events that could not be applied.", no_args_is_help=True)

PipelineFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="The pipeline file, or package.module:name.", show_default=False)
]
PlatformFile = Annotated[
    Path | None,
    typer.Option("--platform-config", metavar="FILE", help="The platform file; without it, the defaults."),
]
Targets = Annotated[list[str] | None, typer.Option("--target", metavar="ID", help="Only this target; may be repeated.")]
Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="As `cdc dlq list` prints them.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_letters(
    file: PipelineFile, *, platform_config: PlatformFile = None, target: Targets = None, json: Json = False
) -> None:
    """List them: where each came from, and why it was put aside.

    With --json, all that is known but the event itself.
    """
    from tailrace.cli import show

    with _opened(file, platform_config) as pipeline:
        letters = list(pipeline.letters().every(target))
    if json:
        rows = [{name: letter[name] for name in letter if name not in ("key", "value")} for letter in letters]
    else:
        brief = ("id", "dlq.error_type", "dlq.error_message", "dlq.timestamp")
        rows = [{name: letter.get(name) for name in brief} for letter in letters]
    show.rows(rows, json_wanted=json, none="no dead letters")


@app.command("show")
def show_letter(
    file: PipelineFile,
    letter: Annotated[str, typer.Argument(metavar="ID", help="As `cdc dlq list` prints it.", show_default=False)],
    *,
    platform_config: PlatformFile = None,
    json: Json = False,
) -> None:
    """Show one whole. It holds a row: mind who looks on."""
    from tailrace.cli import show
    from tailrace.core.errors import Misconfigured

    with _opened(file, platform_config) as pipeline:
        found = next((one for one in pipeline.letters().every() if one["id"] == letter), None)
        if found is None:
            raise Misconfigured("unknown-letter", f'there is no dead letter "{letter}"', "See cdc dlq list.")
        show.tree(found, json_wanted=json)


@app.command()
def replay(
    file: PipelineFile,
    letter: Ids = None,
    *,
    platform_config: PlatformFile = None,
    target: Targets = None,
    json: Json = False,
) -> None:
    """Apply them again: those named, or all.

    What can be applied now leaves the list; so does what is older than the row that the target has, which changes
    nothing. The rest stays. The pipeline must not be running.
    """
    from tailrace.cli import show

    with _opened(file, platform_config) as pipeline:
        show.rows(pipeline.letters().replay(letter or (), target), json_wanted=json, none="no dead letters to replay")


@app.command()
def purge(
    file: PipelineFile,
    letter: Ids = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    platform_config: PlatformFile = None,
    target: Targets = None,
    json: Json = False,
) -> None:
    """Take them off the list without applying them.

    The pipeline must not be running. In Kafka the messages stay in their topic as long as it keeps them.
    """
    from tailrace.cli import show

    if bool(letter) is every:
        raise typer.BadParameter("give the ids of dead letters, or --all")
    with _opened(file, platform_config) as pipeline:
        purged = [{"purged": one} for one in pipeline.letters().purge(letter or (), target)]
        show.rows(purged, json_wanted=json, none="no dead letters")


def _opened(file: Path, platform_config: Path | None) -> Pipeline:
    from tailrace.cli import files
    from tailrace.runtime.build import open_pipeline

    loaded = files.load(file, platform_config)
    return open_pipeline(loaded.pipeline.config, loaded.platform.config)
