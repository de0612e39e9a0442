"""How the server says no: a status, a code and a sentence."""

from __future__ import annotations


class Refused(Exception):
    """An answer that is not a page; without a code the body is empty."""

    def __init__(self, status: int, code: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after = retry_after

    def body(self) -> dict[str, object] | None:
        """Return what the caller reads."""
        return {"code": self.code, "message": str(self)} if self.code else None


def internal() -> Refused:
    """Return the error that stands for everything the server does not explain."""
    return Refused(500, "InternalServerError", "Your request couldn't be completed. Try again later.")
