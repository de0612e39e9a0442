"""`cdc convex`: look into a deployment, publish what is staged of it, or serve one that is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="convex",
    help="Look into a Convex deployment, publish it, or emulate one.",
    no_args_is_help=True,
)


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline file with a Convex source.")],
    *,
    schemas: Annotated[bool, typer.Option("--schemas", help="Show the tables and their columns.")] = False,
    snapshot: Annotated[bool, typer.Option("--snapshot", help="Show a page of the documents.")] = False,
    deltas: Annotated[bool, typer.Option("--deltas", help="Show a page of the changes.")] = False,
    at: Annotated[
        int | None, typer.Option(metavar="TS", help="The timestamp of the snapshot; the newest if unset.")
    ] = None,
    cursor: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Where in the snapshot, or after which timestamp, to go on.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Show so many documents of a page.")] = 5,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a deployment answers.

    Without a choice, the schemas, a page of the newest snapshot and the changes of the last ten minutes. Only
    what the pipeline's selection includes is asked for. Nothing is stored.
    """
    from tailrace.cli import show
    from tailrace.cli.files import load_one
    from tailrace.core.errors import Misconfigured
    from tailrace.sources import _convex_inspect as convex
    from tailrace.sources.convex import Options, connect

    options = load_one(file).config.source.options
    if not isinstance(options, Options):
        raise Misconfigured(
            "wrong-source", "the source of this pipeline is not Convex", "Give a file with source_type: convex."
        )
    all_of_it = not (schemas or snapshot or deltas)
    if cursor is not None and deltas and not cursor.isdecimal():
        raise Misconfigured("bad-cursor", "the cursor of deltas is a timestamp", "Give a number, as a page shows it.")
    client, selection = connect(options)
    found: dict[str, object] = {"deployment": client.deployment}
    if schemas or all_of_it:
        found["schemas"] = convex.schemas(client, selection)
    if snapshot or all_of_it:
        found["snapshot"] = convex.snapshot_page(client, selection, limit, at, None if deltas else cursor)
    if deltas or all_of_it:
        after = int(cursor) if cursor is not None and deltas else None
        found["deltas"] = convex.delta_page(client, selection, limit, after)
    show.tree(found, json_wanted=json)


@app.command()
def publish(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline file with a staging sink.")],
    *,
    platform_config: Annotated[
        Path | None,
        typer.Option("--platform-config", metavar="FILE", help="The platform file; without it, the defaults."),
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option("--target", metavar="ID", help="Only this target; may be repeated.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Publish the staged tables that changed.

    Writes new versions, then the manifest, then switches latest.json to it in one step; old versions are removed once
    there are more than keep_versions. A run may go on meanwhile.
    """
    import sys

    from tailrace.cli import files, show
    from tailrace.runtime.build import open_pipeline
    from tailrace.runtime.report import new_run_id, reporting

    loaded = files.load(file, platform_config)
    with (
        reporting(sys.stderr, loaded.pipeline.config.pipeline_id, new_run_id()) as report,
        open_pipeline(loaded.pipeline.config, loaded.platform.config) as pipeline,
    ):
        done = pipeline.publish(target, report)
    show.rows(done, json_wanted=json, none="nothing is staged")


@app.command()
def emulate(
    *,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where to listen on loopback; 0 takes a free port.")
    ] = 3210,
    seed: Annotated[int, typer.Option(help="The same seed gives the same deployment.")] = 1,
    documents: Annotated[int, typer.Option(min=0, help="How many documents there are at first.")] = 1000,
    rate: Annotated[float, typer.Option(min=0, help="Transactions a second that are written while it runs.")] = 0,
    page_rows: Annotated[
        int | None, typer.Option(min=1, help="How many documents or changes a page has; as many as Convex's if unset.")
    ] = None,
    failing: Annotated[float, typer.Option(min=0, max=1, help="How likely a call is to fail.")] = 0,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND[@ENDPOINT][:CALL]",
            help="Have one call fail: the CALLth to ENDPOINT, or the first to any; may be repeated. KIND is a status, "
            "reset, truncated, invalid, slow, large, or a code of Convex such as SnapshotTooOld.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Serve a Convex deployment from memory.

    Prints its address and its key, and serves until it is stopped. For tests and for trying things out: nothing
    of it is stored.
    """
    from threading import Event

    from tailrace.cli import show
    from tailrace.cli.signals import attend
    from tailrace.core.errors import Misconfigured, NotReady
    from tailrace.testing.convex import Behaviour, Deployment, Emulator, Fault, Limits, Workload
    from tailrace.testing.convex import fault as parsed

    try:
        faults = [parsed(text) for text in fault or ()]
    except ValueError as error:
        raise Misconfigured(
            "wrong-value", f"--fault {error}", "Write for example --fault 503@document_deltas:3 or --fault reset."
        ) from error
    behaviour = Behaviour() if page_rows is None else Behaviour(limits=Limits(page_rows, page_rows))
    stop = Event()
    deployment = Deployment(seed)
    workload = Workload(deployment, seed)
    workload.fill(documents)
    try:
        served = Emulator(deployment, port=port, behaviour=behaviour)
    except OSError as error:
        raise NotReady(
            "port-taken", f"port {port} cannot be listened on: {error.strerror or error}", "Give another --port."
        ) from error
    with served as server:
        if failing:
            server.faults.add(Fault(503, probability=failing))
        server.faults.add(*faults)
        show.tree({"deployment_url": server.url, "deploy_key": server.behaviour.key}, json_wanted=json)

        def serve() -> None:
            while not stop.wait(1 / rate if rate else None):
                workload.write()

        attend(serve, stop.set)
