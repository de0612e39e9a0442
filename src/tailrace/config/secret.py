"""Secrets: from the environment or from a file of their own, and a caution where they stand in the text."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from tailrace.config.document import Document
from tailrace.config.model import Hidden, Loc, secrets_in
from tailrace.config.problem import Problem, quoted

_MAX_BYTES = 65_536


def fetch_secrets(model: type[BaseModel], document: Document, loc: Loc, problems: list[Problem]) -> list[Problem]:
    """Replace each secret written as `{file: path}` by what the file holds; return those that stand in the text."""
    cautions = []
    try:
        section = document.at(loc)
    except KeyError:
        return []
    hidden = set(secrets_in(model, section, kind=Hidden))
    for inner in list(secrets_in(model, section)):
        here = (*loc, *inner)
        match document.at(here):
            case {"file": str(path), **others} if not others:
                document.put(here, _secret_file(Path(path), here, problems))
                document.outside.add(here)
            case str(text) if text and here not in document.outside and inner not in hidden:
                name = quoted(inner[-1])
                hint = "Write it as ${NAME}, or as {file: path}, so that the file can be shared."
                cautions.append(Problem("literal-secret", here, f"the secret {name} stands in the file", hint))
    return cautions


def _secret_file(path: Path, loc: Loc, problems: list[Problem]) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is not text"
        text = f"secret file {quoted(path)} cannot be read: {why.lower()}"
        problems.append(Problem("secret-file", loc, text, "Check the path and who may read the file."))
        return ""
