"""A Hub on this machine that serves the files of one data set, as far as `hf://` paths ask for them."""

import contextlib
import http.server
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

NAME, COMMIT = "me/texts", "0123456789abcdef0123456789abcdef01234567"


class DatasetHub(http.server.ThreadingHTTPServer):
    """The files by their paths, and every request that came."""

    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = dict(files)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.requests: list[str] = []
        """Method, path, and the bytes that are asked for, of each."""

    def listed(self, path: str) -> dict[str, Any]:
        """What the Hub says of a file or a folder."""
        if path in self.files:
            return {"type": "file", "oid": f"{len(self.files[path]):040x}", "size": len(self.files[path]), "path": path}
        return {"type": "directory", "oid": "0" * 40, "size": 0, "path": path}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: DatasetHub  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing."""

    def _send(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _answer(self) -> None:
        """Serves the description of the data set, of paths and of folders, and parts of files; else 404."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub, path = self.server, urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        every = {"/".join(parts[:size]) for parts in (name.split("/") for name in hub.files) for size in range(1, 9)}
        if re.fullmatch(f"/api/datasets/{NAME}(/revision/[^/]+)?", path):
            return self._send(200, json.dumps({"id": NAME, "sha": COMMIT, "siblings": []}).encode())
        if re.fullmatch(f"/api/datasets/{NAME}/paths-info/[^/]+", path):
            asked = urllib.parse.parse_qs(body.decode()).get("paths") or json.loads(body)["paths"]
            return self._send(200, json.dumps([hub.listed(each) for each in asked if each in every]).encode())
        if found := re.fullmatch(f"/api/datasets/{NAME}/tree/[^/]+/?(.*)", path):
            inside = [each for each in sorted(every) if each.rpartition("/")[0] == found[1]]
            if inside:
                return self._send(200, json.dumps([hub.listed(each) for each in inside]).encode())
        found = re.fullmatch(f"/datasets/{NAME}/resolve/[^/]+/(.*)", path)
        if found and found[1] in hub.files:
            content, wanted = hub.files[found[1]], re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
            about = {"ETag": f'"{len(content):040x}"', "X_Repo_Commit": COMMIT, "Accept_Ranges": "bytes"}
            if not wanted:
                return self._send(200, content, **about)
            first, last = int(wanted[1]), min(int(wanted[2]), len(content) - 1)
            place = {"Content_Range": f"bytes {first}-{last}/{len(content)}"}
            return self._send(206, content[first : last + 1], **about, **place)
        return self._send(404, b"{}", X_Error_Code="EntryNotFound" if NAME in path else "RepoNotFound")

    do_GET = do_POST = do_HEAD = _answer


@contextlib.contextmanager
def dataset_hub(files: Mapping[str, bytes]) -> Iterator[DatasetHub]:
    """Serves these files until the end of the block."""
    with DatasetHub(files) as hub:
        thread = threading.Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()
