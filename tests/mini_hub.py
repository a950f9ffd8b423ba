"""A loopback stand-in for the Hugging Face Hub, for tests that must run without a network.

It serves a directory tree as Hub repositories over real HTTP, so that the ordinary
client code paths are exercised (``HF_ENDPOINT`` is the only thing a test has to set)::

    ROOT/models/<org>/<name>/...      <org>/<name>           model repos
    ROOT/datasets/<org>/<name>/...    datasets/<org>/<name>  dataset repos
    ROOT/spaces/<org>/<name>/...      spaces/<org>/<name>    space repos (evaluate modules)

Every repo has one branch, ``main``; its commit hash is derived from the content, so
editing a file makes clients download again.  ``<org>/<name>@<revision>`` beside it is
another revision of it.  Any other full 40-digit hash is accepted as a revision and
answered with the present content.

Standard library only.  Reading always works; ``writable=True`` adds what ``push_to_hub``
and ``upload_file`` need (repo creation and commits of inline files). ``missing_status=401`` answers
for a repo that is not there as the real Hub does to anonymous clients; ``private={repo: token}`` hides
a repo from those without the token; ``read_only={token}`` are tokens that may not write; ``orgs={name}``
are the only organisations in which repos can be made; to commits with a token of ``dropping`` the
connection is closed without an answer::

    with MiniHub(root) as hub:          # picks a free port
        os.environ["HF_ENDPOINT"] = hub.url
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import mimetypes
import os
import re
import threading
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self, TextIO
from urllib.parse import parse_qs, unquote, urlsplit


KINDS = ("models", "datasets", "spaces")
SKIPPED_DIRS = {".git", "__pycache__"}
CHUNK = 1 << 20
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_ID = rf"(?P<repo>{_NAME}/{_NAME})"
_HEX40 = re.compile(r"[0-9a-f]{40}")

# /[kind/]<org>/<name>/resolve/<revision>/<path>
RE_RESOLVE = re.compile(
    rf"^/(?:(?P<kind>models|datasets|spaces)/)?{_ID}/(?:resolve|raw)/(?P<rev>[^/]+)/(?P<path>.+)$"
)
RE_API = re.compile(rf"^/api/(?P<kind>models|datasets|spaces)/{_ID}(?:/(?P<rest>.*))?$")


class HubError(Exception):
    """Something the client did wrong, in the form the Hub reports it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def _blob_id(data: bytes) -> str:
    """The id git would give this content; the Hub uses it as the ETag of a plain file."""
    return hashlib.sha1(b"blob %d\x00" % len(data) + data).hexdigest()


@dataclass(frozen=True)
class Entry:
    path: str
    size: int
    oid: str

    def as_json(self) -> dict:
        return {"type": "file", "path": self.path, "size": self.size, "oid": self.oid}


@dataclass
class Store:
    """The directory tree, read afresh for each request (blob ids are cached by stat)."""

    root: Path
    _ids: dict[tuple[str, int, int], str] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def repo_dir(self, kind: str, repo: str, *, must_exist: bool = True) -> Path:
        base = (self.root / kind).resolve()
        folder = (base / repo).resolve()
        if not folder.is_relative_to(base) or (must_exist and not folder.is_dir()):
            raise HubError(404, "RepoNotFound", "Repository not found")
        return folder

    def file(self, kind: str, repo: str, path: str) -> Path:
        folder = self.repo_dir(kind, repo)
        target = (folder / path).resolve()
        if not target.is_relative_to(folder) or not target.is_file():
            raise HubError(404, "EntryNotFound", "Entry not found")
        return target

    def blob_id(self, path: Path) -> str:
        st = path.stat()
        key = (str(path), st.st_size, st.st_mtime_ns)
        with self._lock:
            if key not in self._ids:
                self._ids[key] = _blob_id(path.read_bytes())
            return self._ids[key]

    def entries(self, kind: str, repo: str) -> list[Entry]:
        folder = self.repo_dir(kind, repo)
        found = []
        for here, dirs, files in os.walk(folder):
            dirs[:] = sorted(d for d in dirs if d not in SKIPPED_DIRS)
            for name in sorted(files):
                p = Path(here, name)
                rel = p.relative_to(folder).as_posix()
                found.append(Entry(rel, p.stat().st_size, self.blob_id(p)))
        return sorted(found, key=lambda e: e.path)

    def commit(self, kind: str, repo: str) -> str:
        lines = "".join(f"{e.path}\0{e.oid}\n" for e in self.entries(kind, repo))
        return hashlib.sha1(f"{kind}/{repo}\n{lines}".encode()).hexdigest()

    def version(self, kind: str, repo: str, revision: str | None) -> str:
        """The folder of a revision: ``name@revision`` beside ``name``, by name or commit; else ``name``."""
        base = (self.root / kind).resolve()
        for folder in sorted(base.glob(f"{repo}@*")):
            found = folder.relative_to(base).as_posix()
            if revision in (found.partition("@")[2], self.commit(kind, found)):
                return found
        return repo

    def check_revision(self, kind: str, repo: str, revision: str | None) -> str:
        if "@" in repo:
            return self.commit(kind, repo)
        head = self.commit(kind, repo)
        if revision in (None, "main", "HEAD") or _HEX40.fullmatch(revision):
            return head
        raise HubError(404, "RevisionNotFound", f"Invalid rev id: {revision}")

    def tree(self, kind: str, repo: str, path: str, recursive: bool) -> list[dict]:
        prefix = path.strip("/")
        inside = [
            e
            for e in self.entries(kind, repo)
            if not prefix or e.path == prefix or e.path.startswith(prefix + "/")
        ]
        if prefix and not inside:
            raise HubError(404, "EntryNotFound", f"{prefix} does not exist on main")
        out, seen = [], set()
        for e in inside:
            rel = e.path[len(prefix) + 1 :] if prefix and e.path != prefix else e.path
            parts = rel.split("/")
            for depth in range(1, len(parts)):
                folder = "/".join(filter(None, [prefix, *parts[:depth]]))
                if folder not in seen and (recursive or depth == 1):
                    seen.add(folder)
                    oid = hashlib.sha1(folder.encode()).hexdigest()
                    out.append({"type": "directory", "path": folder, "size": 0, "oid": oid})
            if recursive or len(parts) == 1:
                out.append(e.as_json())
        return out

    def info(self, kind: str, repo: str) -> dict:
        entries = self.entries(kind, repo)
        newest = max(
            (Path(self.repo_dir(kind, repo), e.path).stat().st_mtime for e in entries),
            default=time.time(),
        )
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(newest))
        info = {
            "_id": hashlib.sha1(f"{kind}/{repo}".encode()).hexdigest()[:24],
            "id": repo,
            "author": repo.split("/")[0],
            "sha": self.commit(kind, repo),
            "lastModified": stamp,
            "createdAt": stamp,
            "private": False,
            "gated": False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "siblings": [{"rfilename": e.path} for e in entries],
        }
        if kind == "models":
            info["modelId"] = repo
            with contextlib.suppress(OSError, ValueError):
                info["config"] = json.loads((self.repo_dir(kind, repo) / "config.json").read_text())
        return info

    def apply(self, kind: str, repo: str, operations: list[dict]) -> str:
        """Write the operations of one commit; the paths are checked before anything is written."""
        folder = self.repo_dir(kind, repo)
        plan = []
        for op in operations:
            value = op.get("value", {})
            if op.get("key") in ("file", "deletedFile", "deletedFolder"):
                target = (folder / value["path"]).resolve()
                if not target.is_relative_to(folder) or target == folder:
                    raise HubError(400, "BadPath", f"path leaves the repository: {value['path']}")
                plan.append((op["key"], target, value))
            elif op.get("key") != "header":
                raise HubError(
                    400,
                    "Unsupported",
                    f"only inline files can be committed here, not {op.get('key')}",
                )
        with self._lock:
            for key, target, value in plan:
                if key == "file":
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(base64.b64decode(value["content"]))
                elif key == "deletedFile":
                    target.unlink(missing_ok=True)
                else:
                    for p in sorted(target.rglob("*"), reverse=True):
                        p.rmdir() if p.is_dir() else p.unlink()
                    with contextlib.suppress(OSError):
                        target.rmdir()
        return self.commit(kind, repo)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "mini-hub"
    server: Server

    # -- plumbing ---------------------------------------------------------------------------

    def _send(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        *,
        length: int | None = None,
    ) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD" and body:
            self.wfile.write(body)
        self.server.note(self.command, self.path, status)

    def _json(self, status: int, value: object, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        self._send(
            status,
            body,
            {"Content-Type": "application/json; charset=utf-8", **(headers or {})},
        )

    def _fail(self, err: HubError, headers: dict[str, str] | None = None) -> None:
        status = self.server.missing_status if err.code == "RepoNotFound" else err.status
        told = {
            "X-Error-Code": err.code,
            "X-Error-Message": err.message,
            **(headers or {}),
        }
        self._json(status, {"error": err.message}, told)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            data = bytearray()
            while size := int(self.rfile.readline().split(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return bytes(data)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _serve(self) -> None:
        # The body is read first, whatever the answer: what is left unread would be
        # taken for the next request on a kept-alive connection.
        body = self._body()
        try:
            url = urlsplit(self.path)
            path, query = unquote(url.path), parse_qs(url.query)
            if m := RE_API.match(path) or RE_RESOLVE.match(path):
                self._need_token(m["repo"])
            if m := RE_API.match(path):
                self._api(m["kind"], m["repo"], m["rest"] or "", query, body)
            elif path.startswith("/api/"):
                self._other_api(path, body)
            elif (m := RE_RESOLVE.match(path)) and self.command in ("GET", "HEAD"):
                self._resolve(m["kind"] or "models", m["repo"], m["rev"], m["path"])
            else:
                raise HubError(404, "RepoNotFound", f"no such page: {path}")
        except HubError as err:
            self._fail(err)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        except Exception as err:
            self._fail(HubError(500, "Internal", f"{type(err).__name__}: {err}"))

    def _need_token(self, repo: str) -> None:
        """A private repo is not there for those without its token."""
        token = self.server.private.get(repo)
        if token and self.headers.get("Authorization") != f"Bearer {token}":
            raise HubError(404, "RepoNotFound", "Repository not found")

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve

    def log_message(self, *args: object) -> None:
        """Silenced: `Server.note` writes the log."""

    # -- files ------------------------------------------------------------------------------

    def _resolve(self, kind: str, repo: str, revision: str, path: str) -> None:
        store = self.server.store
        store.repo_dir(kind, repo)
        repo = store.version(kind, repo, revision)
        head = store.check_revision(kind, repo, revision)
        try:
            file = store.file(kind, repo, path)
        except HubError as err:  # clients remember, for this commit, that the file is not there
            return self._fail(err, {"X-Repo-Commit": head})
        size = file.stat().st_size
        headers = {
            "Content-Type": mimetypes.guess_type(file.name)[0] or "application/octet-stream",
            "ETag": f'"{store.blob_id(file)}"',
            "X-Repo-Commit": head,
            "Accept-Ranges": "bytes",
            "Last-Modified": formatdate(file.stat().st_mtime, usegmt=True),
            "Content-Disposition": f'inline; filename="{file.name}"',
        }
        first, last, status = 0, size - 1, 200
        if (m := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))) and (
            m[1] or m[2]
        ):
            first, last = (
                (int(m[1]), int(m[2]) if m[2] else size - 1)
                if m[1]
                else (max(0, size - int(m[2])), size - 1)
            )
            last = min(last, size - 1)
            if first > last:
                self._send(416, b"", {"Content-Range": f"bytes */{size}"})
                return
            status = 206
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        length = last - first + 1
        if self.command == "HEAD":
            self._send(status, b"", headers, length=length)
            return
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(key, value)
        self.end_headers()
        with file.open("rb") as f:
            f.seek(first)
            while length > 0 and (block := f.read(min(CHUNK, length))):
                self.wfile.write(block)
                length -= len(block)
        self.server.note(self.command, self.path, status)

    # -- the JSON API -----------------------------------------------------------------------

    def _api(self, kind: str, repo: str, rest: str, query: dict, body: bytes) -> None:
        store = self.server.store
        verb, _, tail = rest.partition("/")
        revision, _, path = tail.partition("/")
        if self.command in ("GET", "HEAD"):
            repo = store.version(kind, repo, revision)
            if verb in ("", "revision"):
                store.check_revision(kind, repo, revision or None)
                return self._json(200, store.info(kind, repo))
            if verb == "tree":
                head = store.check_revision(kind, repo, revision or None)
                recursive = query.get("recursive", ["false"])[0].lower() in (
                    "true",
                    "1",
                )
                return self._json(
                    200,
                    store.tree(kind, repo, path, recursive),
                    {"X-Repo-Commit": head},
                )
            if verb == "refs":
                ref = {
                    "name": "main",
                    "ref": "refs/heads/main",
                    "targetCommit": store.commit(kind, repo),
                }
                return self._json(200, {"branches": [ref], "tags": [], "converts": []})
        if self.command == "POST" and verb == "paths-info":
            store.check_revision(kind, repo, revision or None)
            return self._json(200, self._paths_info(kind, repo, body))
        if self.command == "POST" and verb in ("preupload", "commit"):
            self._need_writable()
            if verb == "commit" and self._token() in self.server.dropping:
                raise ConnectionResetError
            if verb == "preupload":
                store.repo_dir(kind, repo)
                plan = {"uploadMode": "regular", "shouldIgnore": False}
                return self._json(
                    200,
                    {"files": [{"path": f["path"], **plan} for f in json.loads(body)["files"]]},
                )
            head = store.apply(
                kind,
                repo,
                [json.loads(line) for line in body.splitlines() if line.strip()],
            )
            where = "" if kind == "models" else kind + "/"
            url = f"{self.server.url}/{where}{repo}/commit/{head}"
            return self._json(
                200,
                {
                    "success": True,
                    "commitOid": head,
                    "commitUrl": url,
                    "hookOutput": "",
                },
            )
        raise HubError(404, "EntryNotFound", f"not served here: {self.command} {self.path}")

    def _paths_info(self, kind: str, repo: str, body: bytes) -> list[dict]:
        if self.headers.get("Content-Type", "").startswith("application/json"):
            wanted = json.loads(body).get("paths", [])
        else:
            wanted = parse_qs(body.decode()).get("paths", [])
        wanted = [wanted] if isinstance(wanted, str) else wanted
        everything = {e["path"]: e for e in self.server.store.tree(kind, repo, "", recursive=True)}
        return [everything[p.strip("/")] for p in wanted if p.strip("/") in everything]

    def _other_api(self, path: str, body: bytes) -> None:
        if path == "/api/validate-yaml":
            return self._json(200, {"errors": [], "warnings": []})
        if path == "/api/whoami-v2" and self.server.writable:
            token = {"type": "access_token", "accessToken": {"role": "write"}}
            return self._json(200, {"type": "user", "name": "local", "orgs": [], "auth": token})
        if path == "/api/repos/create" and self.command == "POST":
            self._need_writable()
            wish = json.loads(body)
            kind = wish.get("type", "model") + "s"
            repo = f"{wish.get('organization') or 'local'}/{wish['name']}"
            if self.server.orgs is not None and repo.split("/")[0] not in self.server.orgs:
                raise HubError(404, "NotFound", "Organization not found")
            if kind not in KINDS or not re.fullmatch(_ID, repo):
                raise HubError(400, "BadRequest", f"not a repository id: {kind}/{repo}")
            folder = self.server.store.repo_dir(kind, repo, must_exist=False)
            where = "" if kind == "models" else kind + "/"
            answer = {
                "url": f"{self.server.url}/{where}{repo}",
                "name": repo,
                "id": repo,
            }
            if folder.is_dir():
                return self._json(409, {**answer, "error": "You already created this repo"})
            folder.mkdir(parents=True)
            return self._json(200, answer)
        raise HubError(
            404 if path != "/api/whoami-v2" else 401,
            "NotFound",
            f"not served here: {path}",
        )

    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def _need_writable(self) -> None:
        if self._token() in self.server.read_only:
            raise HubError(403, "Forbidden", "this token may only read")
        if not self.server.writable:
            raise HubError(403, "Forbidden", "this hub is read-only (start it with writable=True)")


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self,
        root: Path,
        host: str,
        port: int,
        *,
        writable: bool = False,
        missing_status: int = 404,
        private: dict[str, str] | None = None,
        read_only: set[str] | None = None,
        orgs: set[str] | None = None,
        dropping: set[str] | None = None,
        log: TextIO | None = None,
    ) -> None:
        super().__init__((host, port), Handler)
        self.private, self.read_only = private or {}, read_only or set()
        self.orgs, self.dropping = orgs, dropping or set()
        self.store, self.writable, self._log = Store(root.resolve()), writable, log
        self.missing_status = missing_status
        self.requests: list[tuple[str, str, int]] = []
        self._note_lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]}:{self.server_address[1]}"

    def note(self, method: str, path: str, status: int) -> None:
        with self._note_lock:
            self.requests.append((method, path, status))
            if self._log is not None:
                print(status, method, path, file=self._log, flush=True)


class MiniHub:
    """The server on a thread, for use in a test: ``with MiniHub(root) as hub: hub.url``."""

    def __init__(
        self,
        root: str | os.PathLike,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        **options: object,
    ) -> None:
        self._args, self._options = (Path(root), host, port), options

    def __enter__(self) -> Self:
        self.server = Server(*self._args, **self._options)
        self.url = self.server.url
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()

    @property
    def requests(self) -> list[tuple[str, str, int]]:
        """(method, path, status) of everything asked so far."""
        return list(self.server.requests)
