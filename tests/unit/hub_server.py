"""A small Hugging Face hub on 127.0.0.1: the endpoints that huggingface_hub uses for models, and
that is all. Repositories live in memory; large files go through git LFS's batch endpoint.
"""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_" + "t" * 34


@dataclass
class Repository:
    """A model: its files by revision and by commit."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        before = self.commits.get(self.branches.get(branch, ""), {})
        after = {**before, **files}
        text = json.dumps({name: hashlib.sha1(data).hexdigest() for name, data in after.items()})
        number = hashlib.sha1(text.encode()).hexdigest()
        self.commits[number] = after
        self.branches[branch] = number
        return number

    def find(self, revision: str) -> str | None:
        return self.branches.get(revision, revision if revision in self.commits else None)


@dataclass
class Hub:
    """What the server knows, and what it was asked."""

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    modes: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)  # that are told in place of the truth
    down: int = 0  # a status that every request gets


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *words):
        pass

    def answer(self, status, content=b"", **headers):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", headers.pop("length", str(len(data))))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def refuse(self, status, code, text):
        self.answer(status, {"error": text}, X_Error_Code=code, X_Error_Message=text)

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    @property
    def token(self):
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def route(self):
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        body = self.body()
        if self.hub.down:
            return self.answer(self.hub.down, {"error": "the hub is down"})
        if self.token not in ("", TOKEN):
            return self.refuse(401, "InvalidToken", "Invalid credentials in Authorization header")
        for pattern, methods, function in self.ROUTES:
            found = re.fullmatch(pattern, path)
            if found and self.command in methods:
                return function(self, body, *found.groups())
        return self.answer(404, {"error": "unknown"})

    do_GET = do_HEAD = do_POST = do_PUT = route

    def repository(self, name):
        found = self.hub.repositories.get(name)
        if found is None or (found.private and self.token != TOKEN):
            self.refuse(404 if self.token else 401, "RepoNotFound", "Repository not found")
            return None
        return found

    def revision(self, name, revision):
        found = self.repository(name)
        if found is None:
            return None, None
        number = found.find(revision)
        if number is None:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return found, number

    def info(self, body, name, revision="main"):
        found, number = self.revision(name, revision)
        if number is None:
            return
        siblings = [
            {"rfilename": file, "size": self.hub.sizes.get(file, len(data)), "blobId": "0" * 40}
            for file, data in found.commits[number].items()
        ]
        told = {"_id": "1", "id": name, "modelId": name, "sha": number, "private": found.private}
        self.answer(200, {**told, "siblings": siblings, "tags": [], "downloads": 0, "likes": 0})

    def create(self, body):
        if self.token != TOKEN:
            return self.refuse(401, "InvalidToken", "Invalid username or password.")
        asked = json.loads(body)
        name = f"{asked.get('organization') or 'somebody'}/{asked['name']}"
        if asked.get("organization") == "forbidden":
            return self.refuse(403, "Forbidden", "You have no right to write there")
        if name in self.hub.repositories:
            return self.answer(409, {"error": "exists", "url": f"{self.hub.address}/{name}"})
        private = asked.get("private") or asked.get("visibility") == "private"
        self.hub.repositories[name] = Repository(bool(private))
        self.hub.repositories[name].commit("main", {".gitattributes": b""})
        return self.answer(200, {"url": f"{self.hub.address}/{name}", "name": name, "id": name})

    def branch(self, body, name, branch):
        found = self.repository(name)
        if found is None:
            return None
        if branch in found.branches:
            return self.answer(409, {"error": "exists"})
        found.branches[branch] = found.branches["main"]
        return self.answer(200, {})

    def validate(self, body):
        self.answer(200, {"warnings": [], "errors": []})

    def preupload(self, body, name, revision):
        files = []
        for file in json.loads(body)["files"]:
            mode = "lfs" if file["path"].endswith(".safetensors") else "regular"
            self.hub.modes[file["path"]] = mode
            files.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False})
        self.answer(200, {"files": files})

    def batch(self, body, name):
        objects = [
            {
                **one,
                "authenticated": True,
                "actions": {"upload": {"href": f"{self.hub.address}/blobs/{one['oid']}"}},
            }
            for one in json.loads(body)["objects"]
        ]
        self.answer(200, {"transfer": "basic", "objects": objects})

    def store(self, body, number):
        assert hashlib.sha256(body).hexdigest() == number
        self.hub.blobs[number] = body
        self.answer(200)

    def commit(self, body, name, revision):
        found = self.repository(name)
        if found is None:
            return
        files = {}
        for line in filter(None, body.splitlines()):
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.blobs[value["oid"]]
        number = found.commit(revision, files)
        url = f"{self.hub.address}/{name}/commit/{number}"
        self.answer(200, {"success": True, "commitOid": number, "commitUrl": url})

    def resolve(self, body, name, revision, file):
        found, number = self.revision(name, revision)
        if number is None:
            return
        data = found.commits[number].get(file)
        if data is None:
            self.refuse(404, "EntryNotFound", "Entry not found")
            return
        etag = f'"{hashlib.sha256(data).hexdigest()}"'
        self.answer(200, data, ETag=etag, X_Repo_Commit=number, Accept_Ranges="none")

    NAME = r"([\w.-]+/[\w.-]+)"
    ROUTES = (
        (rf"/api/models/{NAME}", ("GET",), info),
        (rf"/api/models/{NAME}/revision/(.+)", ("GET",), info),
        ("/api/repos/create", ("POST",), create),
        ("/api/validate-yaml", ("POST",), validate),
        (rf"/api/models/{NAME}/branch/(.+)", ("POST",), branch),
        (rf"/api/models/{NAME}/preupload/(.+)", ("POST",), preupload),
        (rf"/api/models/{NAME}/commit/(.+)", ("POST",), commit),
        (rf"/{NAME}\.git/info/lfs/objects/batch", ("POST",), batch),
        (r"/blobs/(\w+)", ("PUT",), store),
        (rf"/{NAME}/resolve/([^/]+)/(.+)", ("GET", "HEAD"), resolve),
    )


@contextmanager
def serve_hub():
    """A hub that answers while the context is open."""
    hub = Hub()
    handler = type("Bound", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
