"""A fake node: reads its config file, answers the two requests of `local`, and behaves as files in its data directory
command.

`data/broken` makes it end with an error message, `data/forgotten` with the one about an empty metastore; `data/slow`
keeps it from being ready, `data/behind` its replicas from being in sync.
"""

from __future__ import annotations

import json
import sys
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

FILE = Path(sys.argv[1])
SETTINGS = tomllib.loads(FILE.read_text())
DATA = FILE.parent / "data"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        online = 0 if (DATA / "slow").exists() else 12
        if self.path == "/admin/cluster":
            behind = {
                "node": "me",
                "nodes": [{"name": "me", "replicas": 12, "in_sync": 9 if (DATA / "behind").exists() else 12}],
            }
            status, body = 200, json.dumps({"partitions": {"total": 12, "online": online}, **behind}).encode()
        else:
            status, body = (200, b"ready\n") if online else (503, b"12 partitions are not served\n")
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


if (DATA / "broken").exists():
    sys.exit("isthmus: the data directory is another node's")
if (DATA / "forgotten").exists():
    sys.exit("isthmus: the metastore is empty; `isthmus cluster adopt FILE` fills it again")
for listener in ("http", "admin"):
    host, _, port = SETTINGS["listen"][listener].rpartition(":")
    Thread(target=ThreadingHTTPServer((host, int(port)), Handler).serve_forever).start()
