"""A stand-in of the W&B server: answers what the client asks before and while it sends a run, and
keeps what it receives.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

KEY = "local" + "0" * 40


@dataclass
class Received:
    """What the server has received.

    port: of the server, on the loopback interface
    broken: whether it answers requests for the run's data with an error
    runs: the variables of the last upsert, by run id
    files: the lines of each streamed file, by run id and name
    """

    port: int = 0
    broken: bool = False
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a client with a login."""
        return {"WANDB_BASE_URL": f"http://127.0.0.1:{self.port}", "WANDB_API_KEY": KEY}

    def history(self, run: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.files[run, "wandb-history.jsonl"]]

    def config(self, run: str) -> dict[str, Any]:
        stored = json.loads(self.runs[run]["config"])
        return {key: entry["value"] for key, entry in stored.items() if key != "_wandb"}

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The answer to a query of GraphQL; empty for those that do not matter."""
        if "upsertBucket" in query:
            given = {key: value for key, value in variables.items() if value is not None}
            self.runs.setdefault(variables["name"], {}).update(given)
            project = {"id": "p", "name": variables["project"], "entity": {"name": "me"}}
            bucket = {"id": "b", "name": variables["name"], "project": project}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if "createRunFiles" in query:
            target = f"http://127.0.0.1:{self.port}/upload"
            files = [{"name": name, "uploadUrl": target} for name in variables["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        return {}

    def take(self, run: str, files: dict[str, Any]) -> None:
        for name, part in files.items():
            lines = self.files.setdefault((run, name), [])
            lines[part["offset"] :] = part["content"]


@contextmanager
def wandb_server(broken: bool = False) -> Iterator[Received]:
    received = Received(broken=broken)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            """Stay silent."""

        def do_PUT(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            status, answer = 200, {}
            with received.lock:
                if self.path == "/graphql":
                    asked = json.loads(body)
                    answer = {"data": received.answer(asked["query"], asked["variables"] or {})}
                elif received.broken:
                    status = 500
                elif self.path.endswith("/file_stream"):
                    received.take(self.path.split("/")[-2], json.loads(body).get("files") or {})
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received.port = server.server_address[1]
        Thread(target=server.serve_forever, daemon=True).start()
        yield received
        server.shutdown()
