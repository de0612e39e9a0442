"""The command `cdc`. A command parses, builds, calls and prints; what it calls is in `runtime`.

Everything heavy is imported inside the command that needs it, so that `cdc --help` and `cdc validate`
start at once and without Spark. Exit codes: 0 done, 1 failed while running, 2 wrong configuration or
usage, 3 the environment is not ready.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from tailrace.cli import convex, databricks, feed, lakehouse, letters
from tailrace.cli.failure import exit_code_of
from tailrace.core import failpoint

if TYPE_CHECKING:
    from tailrace.runtime.build import Pipeline
    from tailrace.runtime.run import RunReport

app = typer.Typer(
    name="cdc",
    help="Keep tables current: read a source's changes into a durable log and fold it into targets.",
    epilog="Data goes to standard output, everything else to standard error. "
    "Exit codes: 0 done, 1 failed while running, 2 configuration or usage, 3 the environment is not ready.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(convex.app)
app.add_typer(databricks.app)
app.add_typer(feed.app)
app.add_typer(letters.app)
app.add_typer(lakehouse.app)

PipelineFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="The pipeline file, or package.module:name.", show_default=False)
]
PlatformFile = Annotated[
    Path | None,
    typer.Option("--platform-config", metavar="FILE", help="The platform file; without it, the defaults."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"cdc {version('tailrace')}")
        raise typer.Exit


@app.callback()
def cdc(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """Keep tables current."""


@app.command()
def demo(
    *,
    seconds: Annotated[float, typer.Option(help="How long the shop keeps changing.", min=1)] = 25,
    seed: Annotated[int, typer.Option(help="The same seed gives the same shop.")] = 1,
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="A new or empty folder to work in; it stays.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary folder that is used without --dir.")] = False,
) -> None:
    """Watch a shop in PostgreSQL kept current in Delta and DuckDB.

    An embedded PostgreSQL with a shop that keeps changing is captured and folded into tables of Delta and of DuckDB,
    with a live page to watch; at the end every table of source and targets is compared, row by row. Exits with 0 only
    if they are equal.
    """
    from threading import Event

    from tailrace.cli.signals import attend
    from tailrace.demo.run import demo as run_demo

    stop = Event()
    raise typer.Exit(
        attend(lambda: run_demo(seconds=seconds, seed=seed, directory=directory, keep=keep, stop=stop), stop.set)
    )


@app.command()
def validate(
    file: PipelineFile,
    *,
    platform_config: PlatformFile = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse what would only get a warning.")] = False,
    json: Json = False,
) -> None:
    """Check a pipeline file and print what would run.

    Connects to nothing. Every problem of the file is told, with its line and column.
    """
    from tailrace.cli import files, show

    loaded = files.load(file, platform_config, strict=strict)
    show.tree(show.described(loaded.pipeline, loaded.platform), json_wanted=json)


@app.command()
def plan(file: PipelineFile, *, platform_config: PlatformFile = None, json: Json = False) -> None:
    """Show what a run would create or change.

    Looks at the source and at each target, and touches nothing.
    """
    from dataclasses import asdict

    from tailrace.cli import show

    with _opened(file, platform_config) as pipeline:
        show.rows([asdict(line) for line in pipeline.plan()], json_wanted=json, none="nothing to create or change")


@app.command()
def run(
    file: PipelineFile,
    *,
    platform_config: PlatformFile = None,
    once: Annotated[bool, typer.Option("--once", help="Stop at the head seen at the start.")] = False,
    target: Annotated[
        list[str] | None, typer.Option("--target", metavar="ID", help="Only this target; may be repeated.")
    ] = None,
    max_slices: Annotated[int | None, typer.Option(metavar="N", min=1, help="Stop each target after N slices.")] = None,
    resync: Annotated[bool, typer.Option("--resync", help="Take a new snapshot of every table first.")] = False,
    resync_table: Annotated[
        list[str] | None,
        typer.Option("--resync-table", metavar="TABLE", help="Read this table anew first; may be repeated."),
    ] = None,
    json: Json = False,
) -> None:
    """Keep the targets current.

    Runs until stopped; with --once, up to what the source had at the start.

    With --resync, the new snapshot replaces the rows of every table; of Convex also those of tables that are gone;
    until it is complete, targets keep what they have.

    Ctrl-C or SIGTERM finishes or abandons the slice in hand and exits with 0.
    """
    from tailrace.cli import files, show
    from tailrace.cli.signals import attend
    from tailrace.runtime.build import Resync, open_pipeline
    from tailrace.runtime.report import Several, new_run_id, reporting
    from tailrace.runtime.run import reported
    from tailrace.web.serve import Served

    loaded = files.load(file, platform_config)
    pipeline_id, run_id = loaded.pipeline.config.pipeline_id, new_run_id()
    with (
        reporting(sys.stderr, pipeline_id, run_id) as told,
        open_pipeline(loaded.pipeline.config, loaded.platform.config) as pipeline,
    ):
        served = Served(
            loaded.pipeline.config, loaded.platform.config, run_id, lambda url: told.event("page served", url=url)
        )
        report = Several(told, served.health)

        def work() -> RunReport:
            return pipeline.run(
                once=once,
                targets=target,
                max_slices=max_slices,
                report=report,
                resync=Resync(resync, tuple(resync_table or ())),
                serving=served.serving,
                run_id=run_id,
            )

        def stop() -> None:
            served.health.stopping()
            pipeline.stop()

        done = attend(lambda: reported(pipeline_id, work), stop)
    show.tree(done.to_json(), json_wanted=json)
    if error := done.first_error():
        raise error


@app.command()
def status(file: PipelineFile, *, platform_config: PlatformFile = None, json: Json = False) -> None:
    """Show where source, change log and targets stand."""
    from tailrace.cli import show

    with _opened(file, platform_config) as pipeline:
        show.tree(pipeline.status(), json_wanted=json)


@app.command()
def lag(file: PipelineFile, *, platform_config: PlatformFile = None, json: Json = False) -> None:
    """Show how far each target is behind its source."""
    from tailrace.cli import show

    with _opened(file, platform_config) as pipeline:
        show.rows(pipeline.lag(), json_wanted=json, none="no targets")


@app.command()
def health(*, platform_config: PlatformFile = None, json: Json = False) -> None:
    """Show how servers and running pipelines are.

    With transport_mode: kafka, asks brokers, Kafka Connect and the schema registry, if it is used. Then asks the health
    server of every pipeline that runs on this machine under control.root. Exits with 0 if all of them are well, with 1
    if a part is not, and with 3 if there is nothing to ask.
    """
    from tailrace.cli import health as answers
    from tailrace.cli import show
    from tailrace.config.load import load_platform
    from tailrace.web import ask

    platform = load_platform(platform_config).config
    servers = answers.servers(platform)
    found = ask.running(platform.control.root)
    if json:
        show.as_json([*servers, *found])
    else:
        show.rows([*answers.lines(servers), *answers.components(found)], json_wanted=False, none="no pipeline runs")
    if error := answers.first_failing(servers, found):
        raise error


@app.command()
def consume(
    file: PipelineFile,
    *,
    platform_config: PlatformFile = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="How many changes.")] = 10,
    json: Json = False,
) -> None:
    """Print changes as the engine sees them.

    Begins with the oldest that topics or change log still have; touches neither source nor target. Rows are shown:
    mind who looks on.
    """
    from tailrace.cli import show

    with _opened(file, platform_config) as pipeline:
        show.rows(list(pipeline.consume(limit)), json_wanted=json, none="no changes")


@app.command()
def deploy(file: PipelineFile, *, platform_config: PlatformFile = None, json: Json = False) -> None:
    """Create topics and the connector that fills them.

    For transport_mode: kafka; otherwise a run creates what it needs. May be repeated: what is there already stays, and
    settings that changed are brought up to date. If a step fails, what the others created is removed again.
    """
    from tailrace.cli import show

    with _opened(file, platform_config) as pipeline:
        made = [{"deployed": what} for what in pipeline.deploy()]
        show.rows(made, json_wanted=json, none="nothing to create or change")


class Action(StrEnum):
    """What can be done to a connector."""

    STATUS = "status"
    PAUSE = "pause"
    RESUME = "resume"
    RESTART = "restart"


@app.command()
def connector(
    action: Annotated[Action, typer.Argument(help="What to do.", show_default=False)],
    file: PipelineFile,
    *,
    platform_config: PlatformFile = None,
    json: Json = False,
) -> None:
    """Look at, pause, resume or restart the connector of a pipeline."""
    from tailrace.cli import show

    with _opened(file, platform_config) as pipeline:
        show.tree(pipeline.connector(action.value), json_wanted=json)


@app.command()
def undeploy(file: PipelineFile, *, platform_config: PlatformFile = None, json: Json = False) -> None:
    """Remove what runs created in the source.

    Also removes the pipeline's change log and position, so that the next run takes a new snapshot. The targets' tables
    stay as they are.
    """
    from tailrace.cli import show

    with _opened(file, platform_config) as pipeline:
        removed = [{"removed": what} for what in pipeline.undeploy()]
        show.rows(removed, json_wanted=json, none="nothing to remove")


def _opened(file: Path, platform_config: Path | None) -> Pipeline:
    from tailrace.cli import files
    from tailrace.runtime.build import open_pipeline

    loaded = files.load(file, platform_config)
    return open_pipeline(loaded.pipeline.config, loaded.platform.config)


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit."""
    given = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        # A name from a database must not fail a command because the terminal cannot show it.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    debug = "--debug" in given or os.environ.get("TAILRACE_DEBUG", "0") not in ("", "0")
    try:
        failpoint.arm(os.environ)
        app(given, prog_name="cdc")
    except SystemExit as end:
        # Before a run has begun there is nothing to finish: a request to end is already fulfilled.
        stopped = end.code == 130 and any(command in given[:2] for command in ("run", "demo", "emulate"))
        sys.exit(0 if stopped else end.code)
    except Exception as error:  # noqa: BLE001 - the edge: whatever it is, a person reads one line
        sys.exit(exit_code_of(error, debug=debug))


def command() -> NoReturn:
    """Be the process `cdc`: run the command, then end without taking Python apart.

    Threads of the engine's JVM may ask for the interpreter at any moment. One that does so while it is taken apart
    aborts the process, and a run that went well would end with another exit code.
    """
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    else:
        code = 0
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    command()
