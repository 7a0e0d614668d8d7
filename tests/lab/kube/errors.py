"""Errors as the API server answers them."""

from __future__ import annotations

from kube.http_server import Json


class ApiError(Exception):
    """A request that failed, with the code, the reason and the message that kubectl prints."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message

    def document(self) -> Json:
        """The Status object."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
