"""A Hub on this machine: what huggingface_hub asks of it to create a repository, upload files and commit them.

It keeps every commit and every request, and refuses what the Hub refuses: a wrong token, a foreign owner, a file whose content
is not that of its hash, a commit that names content which nobody uploaded.
"""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

TOKEN, OWNER, SIGNATURE = "hf_a-token-that-is-right", "someone", "signature-of-a-private-link"
LARGE = (".safetensors", ".bin", ".model")


def git_id(content: bytes) -> str:
    """The name of a blob in git."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub(http.server.ThreadingHTTPServer):
    """Repositories of one owner."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.private: dict[str, bool] = {}
        self.branches: dict[tuple[str, str], dict[str, bytes]] = {}
        self.commits: list[dict[str, Any]] = []
        """Repository, branch, message and paths of each."""
        self.uploaded: dict[str, bytes] = {}
        self.requests: list[str] = []
        """Method and path of each."""
        self.failing: dict[str, int] = {}
        """Pattern of a path -> the status that answers it."""
        self.failing_once: dict[str, int] = {}
        """The same for the first such request."""


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing."""

    def answer(self, status: int, content: Any = None, **headers: str) -> None:
        """Sends JSON."""
        data = json.dumps(content if content is not None else {}).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status: int, reason: str, **headers: str) -> None:
        """Sends an error as the Hub does."""
        self.answer(status, {"error": reason}, X_Error_Message=reason, **headers)

    def handle_request(self) -> None:
        """Reads the request and answers it by the first route that it matches."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        hub, path = self.server, urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path}")
        for pattern, status in [*hub.failing.items(), *hub.failing_once.items()]:
            if re.search(pattern, path):
                hub.failing_once.pop(pattern, None)
                return self.refuse(status, f"no, see {hub.url}/x?{SIGNATURE}")
        if path.startswith("/lfs/"):  # signed, so without a token
            return self.store(path.removeprefix("/lfs/"), body)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.refuse(401, "Invalid credentials in Authorization header")
        if path == "/api/validate-yaml":
            return self.answer(200, {"errors": [], "warnings": []})
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if found := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            return self.batch(json.loads(body))
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/([a-z-]+)/(.+))?", path)
        if not found or found[1] not in hub.private:
            return self.refuse(404, "Repository not found", X_Error_Code="RepoNotFound")
        repository, action, branch = found.groups()
        if action is None:
            return self.answer(200, {"id": repository, "private": hub.private[repository], "sha": "0" * 40})
        if action == "branch":
            if (repository, branch) in hub.branches:
                return self.refuse(409, "Reference already exists")
            hub.branches[repository, branch] = dict(hub.branches[repository, "main"])
            return self.answer(200)
        if (repository, branch) not in hub.branches:
            return self.refuse(404, "Invalid rev id", X_Error_Code="RevisionNotFound")
        files = hub.branches[repository, branch]
        if action == "paths-info":
            wanted = urllib.parse.parse_qs(body.decode())["paths"]
            return self.answer(200, [self.info(name, files[name]) for name in wanted if name in files])
        if action == "preupload":
            names = [each["path"] for each in json.loads(body)["files"]]
            modes = [{"path": name, "uploadMode": "lfs" if name.endswith(LARGE) else "regular"} for name in names]
            return self.answer(200, {"files": [{**each, "shouldIgnore": False} for each in modes]})
        assert action == "commit", path
        return self.commit(repository, branch, [json.loads(line) for line in body.splitlines()])

    do_GET = do_POST = do_PUT = handle_request

    def info(self, name: str, content: bytes) -> dict[str, Any]:
        """A file as `paths-info` describes it."""
        large = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        lfs = {"lfs": large} if name.endswith(LARGE) else {}
        return {"type": "file", "path": name, "size": len(content), "oid": git_id(content), **lfs}

    def create(self, wanted: dict[str, Any]) -> None:
        """A repository with an empty branch main."""
        hub, name = self.server, f"{wanted['organization']}/{wanted['name']}"
        if wanted["organization"] != OWNER:
            return self.refuse(403, f"You don't have the rights to create a model under {wanted['organization']}")
        if name in hub.private:
            return self.answer(409, {"error": "You already created this model repo", "url": f"{hub.url}/{name}"})
        hub.private[name] = wanted.get("visibility") == "private"
        hub.branches[name, "main"] = {}
        self.answer(200, {"url": f"{hub.url}/{name}"})

    def batch(self, wanted: dict[str, Any]) -> None:
        """Signed links for content that is not here yet."""
        objects = []
        for each in wanted["objects"]:
            link = {"href": f"{self.server.url}/lfs/{each['oid']}?X-Amz-Signature={SIGNATURE}"}
            here = each["oid"] in self.server.uploaded
            objects.append({**each, **({} if here else {"actions": {"upload": link}})})
        self.answer(200, {"transfer": "basic", "objects": objects})

    def store(self, name: str, content: bytes) -> None:
        """Content under its hash."""
        if hashlib.sha256(content).hexdigest() != name:
            return self.refuse(400, "content of another hash")
        self.server.uploaded[name] = content
        self.answer(200)

    def commit(self, repository: str, branch: str, lines: list[dict[str, Any]]) -> None:
        """All files at once, or none."""
        header, *operations = lines
        changed = {}
        for each in operations:
            value = each["value"]
            if each["key"] == "file":
                changed[value["path"]] = base64.b64decode(value["content"])
            elif value["oid"] in self.server.uploaded:
                changed[value["path"]] = self.server.uploaded[value["oid"]]
            else:
                return self.refuse(400, "content that nobody uploaded")
        self.server.branches[repository, branch] |= changed
        what = {"repository": repository, "branch": branch, "message": header["value"]["summary"]}
        self.server.commits.append({**what, "paths": sorted(changed)})
        number = hashlib.sha1(str(len(self.server.commits)).encode()).hexdigest()
        self.answer(200, {"commitUrl": f"{self.server.url}/{repository}/commit/{number}", "commitOid": number})


@contextlib.contextmanager
def running_hub() -> Iterator[Hub]:
    """Listens on a free port of this machine until the block ends."""
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join(10)
