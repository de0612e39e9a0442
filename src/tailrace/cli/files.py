"""The two files that a command is given, loaded, with their warnings told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
    """Load both files; with `strict`, warnings are errors."""
    files = Files(load_pipeline(file), load_platform(platform_config))
    if strict:
        files.pipeline.refuse_warnings()
        files.platform.refuse_warnings()
    for caution in (*files.pipeline.warnings, *files.platform.warnings):
        tell(caution.render())
    return files
