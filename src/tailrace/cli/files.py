"""The pipeline and the platform that a command is given, loaded, with their warnings told."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tailrace.api.find import find_pipeline, is_reference
from tailrace.cli.show import tell
from tailrace.config.load import Loaded, load_pipeline, load_platform
from tailrace.config.pipeline import PipelineConfig
from tailrace.config.platform import PlatformConfig


@dataclass(frozen=True, slots=True)
class Files:
    """A pipeline, and the platform that it runs on."""

    pipeline: Loaded[PipelineConfig]
    platform: Loaded[PlatformConfig]


def load(file: Path, platform_config: Path | None, *, strict: bool = False) -> Files:
    """Load both; with `strict`, warnings are errors. `file` may also be `package.module:name`."""
    files = Files(load_one(file), load_platform(platform_config))
    if strict:
        files.pipeline.refuse_warnings()
        files.platform.refuse_warnings()
    for caution in (*files.pipeline.warnings, *files.platform.warnings):
        tell(caution.render())
    return files


def load_one(file: Path) -> Loaded[PipelineConfig]:
    """Load a pipeline alone: the file, or else the one that is declared as `package.module:name`."""
    if file.exists() or not is_reference(str(file)):
        return load_pipeline(file)
    # A module is looked for where the command was started, as `python -m` does.
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return find_pipeline(str(file)).load()
    finally:
        sys.path.remove(here)
