"""A real disk that is nearly full: a file system in memory, which takes root to mount."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Disk:
    """A small file system at `root` that can be filled up and given room again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._ballast = root / "ballast"

    def fill(self, leave: int = 0) -> None:
        """Use up all space but `leave` bytes."""
        with self._ballast.open("wb", buffering=0) as file:
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * 4096)
            file.truncate(max(0, file.tell() - leave))

    def free(self) -> None:
        """Give the space back."""
        self._ballast.unlink()


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Disk]:
    """Mount a disk of `size` at `folder`; it is gone afterwards, whatever happens."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tailrace-test", str(folder)], check=True)
    try:
        yield Disk(folder)
    finally:
        # Lazily: a JVM may still hold a file open.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
