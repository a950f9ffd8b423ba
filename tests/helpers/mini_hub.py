"""A loopback stand-in for the Hugging Face Hub, for tests that must run without a network.

Repositories are folders, ``<root>/<kind>/<org>/<name>``, read anew for each request; ``<name>@<revision>`` beside one is
another revision of it. Files are served, listed and committed inline, which is what `huggingface_hub`, `transformers`,
`datasets` and `evaluate` ask for here. Anything else is answered as what is not there.
"""

import base64
import hashlib
import json
import mimetypes
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit


REPO = r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)"
FILE = re.compile(
    rf"/(?:(?P<kind>datasets|spaces)/)?{REPO}/(?:resolve|raw)/(?P<revision>[^/]+)/(?P<path>.+)"
)
API = re.compile(
    rf"/api/(?P<kind>models|datasets|spaces)/{REPO}(?:/(?P<verb>[^/]+)(?:/(?P<revision>[^/]+)(?:/(?P<path>.*))?)?)?"
)
A_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubError(Exception):
    """Something the client did wrong, in the form the Hub reports it."""

    def __init__(self, status: int, code: str, message: str = "not found") -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def blob_id(data: bytes) -> str:
    """The id git would give this content; the Hub uses it as the ETag of a plain file."""
    return hashlib.sha1(b"blob %d\x00" % len(data) + data).hexdigest()


class MiniHub(ThreadingHTTPServer):
    """The server on a thread: ``with MiniHub(root) as hub: hub.url``.

    Args:
        root: the folder of the repositories.
        writable: whether anything may be committed.
        missing_status: of a repository that is not there.
        private: the token that a repository needs.
        read_only: tokens that may not write.
        orgs: organisations that there are; any by default.
        dropping: tokens whose commits end in a broken connection.
    """

    daemon_threads = True

    def __init__(
        self,
        root: Path,
        *,
        writable: bool = False,
        missing_status: int = 404,
        private: dict[str, str] | None = None,
        read_only: set[str] | None = None,
        orgs: set[str] | None = None,
        dropping: set[str] | None = None,
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root, self.writable, self.missing_status = root.resolve(), writable, missing_status
        self.private, self.read_only = private or {}, read_only or set()
        self.orgs, self.dropping = orgs, dropping or set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.requests: list[tuple[str, str, int]] = []
        """(method, path, status) of everything asked so far."""

    def __enter__(self) -> Self:
        self.thread = threading.Thread(target=self.serve_forever, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self.thread.join()

    # --- repositories -----------------------------------------------------------------------------

    def folder(self, kind: str, repo: str, revision: str | None = None) -> Path:
        """That of a revision, by its name or commit."""
        main = self.root / kind / repo
        if not main.is_dir():
            raise HubError(404, "RepoNotFound", "Repository not found")
        for other in main.parent.glob(f"{main.name}@*"):
            if revision in (other.name.partition("@")[2], self.commit(other)):
                return other
        if revision in (None, "main", "HEAD") or A_COMMIT.fullmatch(revision):
            return main
        raise HubError(404, "RevisionNotFound", f"Invalid rev id: {revision}")

    def files(self, folder: Path) -> dict[str, Path]:
        found = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*")}
        return {name: found[name] for name in sorted(found) if found[name].is_file()}

    def commit(self, folder: Path) -> str:
        lines = [f"{name}\0{blob_id(f.read_bytes())}" for name, f in self.files(folder).items()]
        return hashlib.sha1("\n".join([str(folder), *lines]).encode()).hexdigest()

    def tree(self, folder: Path, path: str, recursive: bool) -> list[dict[str, Any]]:
        """Files and folders below a path."""
        below = folder / path
        if not below.is_dir():
            raise HubError(404, "EntryNotFound", f"{path} does not exist on main")
        told = []
        for entry in sorted(below.rglob("*") if recursive else below.iterdir()):
            data = entry.read_bytes() if entry.is_file() else entry.name.encode()
            kind, size = ("file", len(data)) if entry.is_file() else ("directory", 0)
            place = entry.relative_to(folder).as_posix()
            told.append({"type": kind, "path": place, "size": size, "oid": blob_id(data)})
        return told

    def info(self, kind: str, repo: str, folder: Path) -> dict[str, Any]:
        stamp = "2026-01-01T00:00:00.000Z"
        told: dict[str, Any] = {"id": repo, "modelId": repo, "author": repo.split("/")[0]}
        told |= {"_id": blob_id(repo.encode())[:24], "sha": self.commit(folder), "tags": []}
        told |= {"lastModified": stamp, "createdAt": stamp, "downloads": 0, "likes": 0}
        told |= dict.fromkeys(("private", "gated", "disabled"), False)
        files = self.files(folder)
        told["siblings"] = [{"rfilename": name} for name in files]
        if kind == "models" and "config.json" in files:
            told["config"] = json.loads(files["config.json"].read_text())
        return told


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: MiniHub

    def _serve(self) -> None:
        body = self._body()  # what is left unread would be taken for the next request
        url = urlsplit(self.path)
        path, query = unquote(url.path), parse_qs(url.query)
        try:
            if found := API.fullmatch(path):
                self._need_token(found["repo"])
                self._api(found, query, body)
            elif found := FILE.fullmatch(path):
                self._need_token(found["repo"])
                self._file(found)
            else:
                self._other(path, body)
        except HubError as error:
            self._fail(error)
        except ConnectionError:
            self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        data = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return data

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.server.requests.append((self.command, self.path, status))

    def _json(self, value: Any, status: int = 200, **headers: str) -> None:
        self._send(
            status, json.dumps(value).encode(), {"Content-Type": "application/json", **headers}
        )

    def _fail(self, error: HubError, **headers: str) -> None:
        status = self.server.missing_status if error.code == "RepoNotFound" else error.status
        told = {"X-Error-Code": error.code, "X-Error-Message": error.message}
        self._json({"error": error.message}, status, **told, **headers)

    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def _need_token(self, repo: str) -> None:
        """A private repository is not there for those without its token."""
        if self.server.private.get(repo, self._token()) != self._token():
            raise HubError(404, "RepoNotFound", "Repository not found")

    def _need_writable(self) -> None:
        if self._token() in self.server.read_only or not self.server.writable:
            raise HubError(403, "Forbidden", "this token may only read")

    def _file(self, found: re.Match[str]) -> None:
        folder = self.server.folder(found["kind"] or "models", found["repo"], found["revision"])
        commit = {"X-Repo-Commit": self.server.commit(folder)}
        file = self.server.files(folder).get(found["path"])
        if file is None:  # clients remember, for this commit, that the file is not there
            return self._fail(HubError(404, "EntryNotFound", "Entry not found"), **commit)
        data = file.read_bytes()
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        self._send(200, data, {"Content-Type": kind, "ETag": f'"{blob_id(data)}"', **commit})

    def _api(self, found: re.Match[str], query: dict[str, list[str]], body: bytes) -> None:
        kind, repo, verb = found["kind"], found["repo"], found["verb"]
        folder = self.server.folder(kind, repo, found["revision"])
        if self.command == "POST" and verb in ("preupload", "commit"):
            return self._write(kind, repo, verb, folder, body)
        if self.command == "POST" and verb == "paths-info":
            is_json = self.headers.get("Content-Type", "").startswith("application/json")
            asked = json.loads(body) if is_json else parse_qs(body.decode())
            entries = self.server.tree(folder, "", recursive=True)
            return self._json([e for e in entries if e["path"] in asked.get("paths", [])])
        if verb in (None, "revision"):
            return self._json(self.server.info(kind, repo, folder))
        commit = self.server.commit(folder)
        if verb == "tree":
            recursive = query.get("recursive", ["false"])[0].lower() in ("true", "1")
            entries = self.server.tree(folder, (found["path"] or "").strip("/"), recursive)
            return self._json(entries, **{"X-Repo-Commit": commit})
        if verb == "refs":
            main = {"name": "main", "ref": "refs/heads/main", "targetCommit": commit}
            return self._json({"branches": [main], "tags": [], "converts": []})
        raise HubError(404, "EntryNotFound", f"not served here: {self.path}")

    def _write(self, kind: str, repo: str, verb: str, folder: Path, body: bytes) -> None:
        self._need_writable()
        if verb == "preupload":
            plan = {"uploadMode": "regular", "shouldIgnore": False}
            files = [{"path": file["path"], **plan} for file in json.loads(body)["files"]]
            return self._json({"files": files})
        if self._token() in self.server.dropping:
            raise ConnectionResetError
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                target = folder / line["value"]["path"]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(base64.b64decode(line["value"]["content"]))
            elif line["key"] == "deletedFile":
                (folder / line["value"]["path"]).unlink()
        commit = self.server.commit(folder)
        url = f"{self._page(kind, repo)}/commit/{commit}"
        told = {"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""}
        self._json(told)

    def _page(self, kind: str, repo: str) -> str:
        return "/".join([self.server.url, *([] if kind == "models" else [kind]), repo])

    def _other(self, path: str, body: bytes) -> None:
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if path == "/api/whoami-v2" and self.server.writable:
            token = {"type": "access_token", "accessToken": {"role": "write"}}
            return self._json({"type": "user", "name": "local", "orgs": [], "auth": token})
        if path == "/api/repos/create":
            self._need_writable()
            wish = json.loads(body)
            kind = wish.get("type", "model") + "s"
            repo = f"{wish.get('organization') or 'local'}/{wish['name']}"
            if self.server.orgs is not None and repo.split("/")[0] not in self.server.orgs:
                raise HubError(404, "NotFound", "Organization not found")
            folder = self.server.root / kind / repo
            told = {"url": self._page(kind, repo), "name": repo, "id": repo}
            status = 409 if folder.is_dir() else 200  # there already
            folder.mkdir(parents=True, exist_ok=True)
            return self._json(told | {"error": "there already"}, status)
        missing = 401 if path == "/api/whoami-v2" else 404
        raise HubError(missing, "NotFound", f"not served here: {path}")
