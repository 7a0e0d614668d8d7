"""A stand-in for the metadata services of AWS, Google Cloud and Azure, with their formats and oddities.

As a program, it serves the link-local address of a lab host: `python metadata_service.py CLOUD FILE`. FILE has what it
knows, and a test may change it.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = "AQAEAPlBTW5cKQ=="

AWS_NOTHING = (
    b'<?xml version="1.0" encoding="iso-8859-1"?>\n<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Transitional//EN"\n'
    b'"http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd">\n<html><head><title>404 - Not Found</title></head>'
    b"<body><h1>404 - Not Found</h1></body></html>"
)


class Handler(BaseHTTPRequestHandler):
    """Answers as a cloud does; subclasses say which, and what it knows: the bodies by name, None for nothing."""

    protocol_version = "HTTP/1.1"
    cloud = ""
    answers: Any = dict

    def log_message(self, format: str, *args: object) -> None:
        pass

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        token = self.answers().get("token", TOKEN).encode()
        if self.cloud != "aws" or self.path != "/latest/api/token":
            self.reply(405, b"")
        elif "X-aws-ec2-metadata-token-ttl-seconds" not in self.headers:
            self.reply(400, b"")
        elif token == b"forbidden":
            self.reply(403, b"")
        else:
            self.reply(200, token, X_aws_ec2_metadata_token_ttl_seconds="21600")

    def do_GET(self) -> None:
        getattr(self, f"on_{self.cloud}")(self.answers(), self.path.partition("?")[0])

    def on_aws(self, known: dict[str, Any], path: str) -> None:
        if self.headers.get("X-aws-ec2-metadata-token") != known.get("token", TOKEN):
            self.reply(401, b"")
        elif path == "/latest/meta-data/spot/instance-action" and known.get("action") is not None:
            self.reply(200, known["action"].encode(), Content_Type="application/json")
        elif path == "/latest/meta-data/events/recommendations/rebalance" and known.get("rebalance"):
            self.reply(200, known["rebalance"].encode())
        else:
            self.reply(404, AWS_NOTHING)

    def on_gcp(self, known: dict[str, Any], path: str) -> None:
        if self.headers.get("Metadata-Flavor") != "Google":
            self.reply(403, b"Missing Metadata-Flavor:Google header.")
            return
        name = path.rpartition("/")[2]
        default = {"preempted": "FALSE", "maintenance-event": "NONE"}.get(name)
        if default is None:
            self.reply(404, b"<!DOCTYPE html>", Metadata_Flavor="Google")
        else:
            self.reply(200, known.get(name, default).encode(), Metadata_Flavor="Google")

    def on_azure(self, known: dict[str, Any], path: str) -> None:
        if self.headers.get("Metadata") != "true":
            self.reply(400, b'{"error":"Bad request: required metadata header not specified"}')
        elif "api-version=" not in self.path:
            self.reply(400, b'{"error":"Bad request. api-version is invalid or was not specified in the request."}')
        elif path == "/metadata/instance/compute/name":
            self.reply(200, known.get("name", "train_7").encode())
        elif path == "/metadata/scheduledevents":
            body = known.get("events", {"DocumentIncarnation": 1, "Events": []})
            self.reply(200, body.encode() if isinstance(body, str) else json.dumps(body).encode())
        else:
            self.reply(404, b"")


def serve(cloud: str, answers: Any, address: tuple[str, int]) -> ThreadingHTTPServer:
    """A server that answers as `cloud` does."""
    kind = type("CloudHandler", (Handler,), {"cloud": cloud, "answers": staticmethod(answers)})
    return ThreadingHTTPServer(address, kind)


if __name__ == "__main__":
    file = Path(sys.argv[2])
    serve(sys.argv[1], lambda: json.loads(file.read_text()), ("169.254.169.254", 80)).serve_forever()
