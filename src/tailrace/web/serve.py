"""The health of one run and the server that answers for it, as the platform wants it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version

from tailrace.config.pipeline import PipelineConfig
from tailrace.config.platform import PlatformConfig
from tailrace.control.health import Health
from tailrace.control.readiness import Bounds
from tailrace.core.errors import NotReady
from tailrace.web import ask
from tailrace.web.server import Server


class Served:
    """The health of one run, and the server that answers for it if the platform wants one."""

    def __init__(
        self,
        pipeline: PipelineConfig,
        platform: PlatformConfig,
        run_id: str,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._platform = platform
        self._tell = tell
        self._run_id = run_id
        self._folder = platform.control_root(pipeline.pipeline_id)
        targets = {sink.sink_id: sink.sink_type for sink in pipeline.enabled_sinks}
        self.health = Health(pipeline.pipeline_id, run_id, pipeline.source.source_type, targets)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Answer while this is entered, and tell where."""
        if not self._platform.health_enabled:
            yield
            return
        with self._listening() as server, ask.noted(self._folder, self._run_id, server.address):
            host, port = server.address
            self._tell(f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/")
            yield

    def _listening(self) -> Server:
        platform = self._platform
        bounds = Bounds(platform.health_max_lag_seconds, platform.health_max_slot_bytes)
        listen = functools.partial(Server, self.health, bounds, version("tailrace"), platform.health_host)
        try:
            return listen(platform.health_port)
        except NotReady as error:
            if error.code != "port-in-use" or "health_port" in platform.model_fields_set:
                raise
            # A port that nobody asked for does not keep a second pipeline from running; `cdc health` finds the other.
            return listen(0)
