"""`cdc databricks`: what it takes to run a pipeline there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(name="databricks", help="Write what Databricks needs to run a pipeline.", no_args_is_help=True)


@app.callback()
def databricks() -> None:
    """Write what Databricks needs to run a pipeline."""


@app.command()
def bundle(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline file with a bronze sink.")],
    *,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder of the bundle: new, empty, or one.")],
    platform_config: Annotated[
        Path | None,
        typer.Option("--platform-config", metavar="FILE", help="The platform file; without it, the defaults."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write an Asset Bundle: extractor job, bronze and silver tables, dashboard.

    The tables are the bronze tables that runs have made; before a first run, those that the Convex deployment has now.
    Connects to no Databricks, and writes no secret. The same tables give the same files.
    """
    from tailrace.cli import files, show
    from tailrace.databricks.bundle import write, written
    from tailrace.runtime.build import open_pipeline

    loaded = files.load(file, platform_config)
    with open_pipeline(loaded.pipeline.config, loaded.platform.config) as pipeline:
        paths = write(written(pipeline.landing()), out)
    show.rows([{"file": path} for path in paths], json_wanted=json, none="nothing was written")
