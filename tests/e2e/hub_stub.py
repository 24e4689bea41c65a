"""A server with as much of the Hugging Face Hub's API as fetching a model needs, and a second one that plays its content network.

Everything that was asked is written down, and files can be made to break off, stall, lie or fail.
"""

import hashlib
import http.server
import json
import threading
import urllib.parse

GOOD_TOKEN = "hf_good"


def git_blob_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repo:
    """Files by path; those that git would keep in LFS are named by their ends."""

    def __init__(self, files, commit="0123456789abcdef0123456789abcdef01234567"):
        self.files, self.commit = dict(files), commit
        self.gated = False
        self.said = {}  # path -> keys of its entry in the listing to say instead
        self.blobs = True  # whether the listing has sizes and checksums

    def is_lfs(self, path):
        return path.endswith((".safetensors", ".gguf"))

    def etag(self, path):
        data = self.files[path]
        return hashlib.sha256(data).hexdigest() if self.is_lfs(path) else git_blob_id(data)

    def siblings(self):
        for path, data in self.files.items():
            entry = {"rfilename": path}
            if self.blobs:
                entry.update(size=len(data), blobId=git_blob_id(data))
                if self.is_lfs(path):
                    entry["lfs"] = {"sha256": self.etag(path), "size": len(data), "pointerSize": 134}
            yield {**entry, **self.said.get(path, {})}

    def tree(self):
        for path, data in self.files.items():
            entry = {"type": "file", "oid": git_blob_id(data), "size": len(data), "path": path}
            if self.is_lfs(path):
                entry["lfs"] = {"oid": self.etag(path), "size": len(data), "pointerSize": 134}
            yield entry


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        stub = self.server.stub
        self.record = {"server": self.server.role, "method": self.command, "path": urllib.parse.unquote(self.path),
                       "headers": {name.lower(): value for name, value in self.headers.items()}, "sent": 0}
        stub.log.append(self.record)
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        try:
            if self.server.role == "content":
                repo, name = stub.content[path]
                self.send_file(repo, name)
            elif path.startswith("/api/models/"):
                self.send_api(path[len("/api/models/"):].split("/"))
            elif path.count("/") >= 5:
                org, name, _, _, file = path[1:].split("/", 4)
                self.send_resolved(f"{org}/{name}", file)
            else:
                self.refuse(404)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def send(self, status, body=b"", headers=None):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
            self.record["sent"] = len(body)

    def refuse(self, status, code=""):
        self.send(status, b"{}", {"X-Error-Code": code} if code else {})

    def fault(self, name):
        queue = self.server.stub.faults.get(name)
        return (queue.pop(0) if len(queue) > 1 or not queue[0].get("always") else queue[0]) if queue else {}

    def send_api(self, parts):
        stub = self.server.stub
        fault = self.fault("api")
        if "status" in fault:
            return self.refuse(fault["status"])
        if "body" in fault:
            return self.send(200, fault["body"])
        if "redirect" in fault:
            return self.send(302, b"", {"Location": fault["redirect"]})
        repo = stub.repos.get("/".join(parts[:2]))
        if repo is None:
            return self.refuse(401, "RepoNotFound")
        revision = "/".join(parts[3:])
        if revision not in ("main", repo.commit):
            return self.refuse(404, "RevisionNotFound")
        body = list(repo.tree()) if parts[2] == "tree" else \
            {"id": "/".join(parts[:2]), "sha": repo.commit, "siblings": list(repo.siblings())}
        self.send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def send_resolved(self, repo_id, file):
        stub = self.server.stub
        repo = stub.repos[repo_id]
        if repo.gated and self.headers.get("Authorization") != f"Bearer {GOOD_TOKEN}":
            return self.refuse(401 if "Authorization" not in self.headers else 403, "GatedRepo")
        if file not in repo.files:
            return self.refuse(404, "EntryNotFound")
        if not repo.is_lfs(file):
            return self.send_file(repo, file)
        where = f"/content/{repo.etag(file)}"
        stub.content[where] = (repo, file)
        self.send(302, b"", {"Location": f"{stub.content_url}{where}", "X-Repo-Commit": repo.commit,
                             "X-Linked-Etag": f'"{repo.etag(file)}"', "X-Linked-Size": str(len(repo.files[file]))})

    def send_file(self, repo, file):
        """The bytes, or a range of them, with the next fault of this file."""
        data, etag = repo.files[file], f'"{repo.etag(file)}"' if self.server.role == "hub" else '"another tag"'
        fault = self.fault(file) if self.command == "GET" else {}
        if "status" in fault:
            return self.refuse(fault["status"])
        data = fault.get("data", data)
        begin = 0
        wanted = self.headers.get("Range", "")
        if wanted.startswith("bytes=") and not fault.get("ignore_range") and self.headers.get("If-Range", etag) == etag:
            begin = int(wanted[6:-1])
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", fault.get("range", f"bytes {begin}-{len(data) - 1}/{len(data)}"))
        if not fault.get("no_length"):
            self.send_header("Content-Length", str(len(data) - begin))
        self.send_header("ETag", etag)
        self.send_header("X-Repo-Commit", repo.commit)
        self.end_headers()
        if self.command == "HEAD":
            return
        end = begin + fault["break"] if "break" in fault else len(data)
        body = data[begin:end]
        self.wfile.write(body)
        self.wfile.flush()
        self.record["sent"] = len(body)
        if "stall" in fault:
            self.server.stub.stalled.set()
            self.server.stub.released.wait(60)
        if end < len(data) or fault.get("no_length"):
            self.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """A client that leaves is no news."""


class Stub:
    """`with Stub(repos) as stub:`; stub.url is the endpoint. faults: name of a file, or `api`, -> what goes wrong with the next
    requests for it, one after the other; one with `always` stays."""

    def __init__(self, repos):
        self.repos = repos
        self.log, self.faults, self.content = [], {}, {}
        self.stalled, self.released = threading.Event(), threading.Event()
        self.servers = []

    def __enter__(self):
        urls = {}
        for role in ("hub", "content"):
            server = Server(("127.0.0.1", 0), Handler)
            server.stub, server.role = self, role
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.servers.append(server)
            urls[role] = f"http://127.0.0.1:{server.server_address[1]}"
        self.url, self.content_url = urls["hub"], urls["content"]
        return self

    def __exit__(self, *_):
        self.released.set()
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def asked(self, server=None, method=None, end=""):
        return [record for record in self.log if server in (None, record["server"]) and method in (None, record["method"])
                and record["path"].endswith(end)]

    def sent(self, repo, file):
        """Bytes of a file's content that left, over all requests."""
        ends = (f"/{file}", repo.etag(file))
        return sum(record["sent"] for record in self.log if record["path"].endswith(ends))
