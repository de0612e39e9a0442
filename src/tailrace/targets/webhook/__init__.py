"""Messages over HTTP as a target."""

from tailrace.targets.webhook.settings import KEEPS_NOTES, MODES, PROMISE, Options, open_target

__all__ = ["KEEPS_NOTES", "MODES", "PROMISE", "Options", "open_target"]
