"""Git repositories, and servers for them: with and without a token, over TLS, dumb, slow or out of order."""

from __future__ import annotations

import base64
import datetime
import http.server
import ipaddress
import os
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_ALONE = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}


def git(directory: Path, *arguments: str) -> str:
    """Run git in a directory and return what it printed."""
    done = subprocess.run(
        ["git", *arguments],
        cwd=directory,
        env={**os.environ, **_ALONE},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


class Repository:
    """A repository with a working copy, of which each commit replaces all files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        git(path, "init", "--quiet", "--initial-branch=main")

    def commit(self, files: dict[str, str], *, branch: str = "main", tag: str = "") -> str:
        """Commit these files alone (text, or "-> target" for a link) and return the commit's id."""
        git(self.path, "symbolic-ref", "HEAD", f"refs/heads/{branch}")
        git(self.path, "rm", "-r", "--quiet", "--cached", "--ignore-unmatch", ".")
        for path in sorted(self.path.rglob("*"), reverse=True):
            if ".git" in path.relative_to(self.path).parts:
                continue
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        for name, content in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content.startswith("-> "):
                path.symlink_to(content[3:])
            else:
                path.write_text(content)
        git(self.path, "add", "--all")
        git(self.path, "commit", "--quiet", "--allow-empty", "--message=more")
        if tag:
            git(self.path, "tag", "--annotate", "--message=x", tag)
        git(self.path, "update-server-info")
        return git(self.path, "rev-parse", "HEAD")


Answer = Callable[["Handler"], bool]


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers through ``git http-backend``."""

    server: GitServer
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""

    def refuse(self, code: int, **headers: str) -> None:
        """Answer without content."""
        self._send(code, {name.replace("_", "-"): value for name, value in headers.items()}, b"")

    def _send(self, code: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _answer(self) -> None:
        given = self.headers.get("Authorization", "")
        self.server.authorizations.append(given)
        if any(answer(self) for answer in self.server.answers):
            return
        token = self.server.token
        if token and base64.b64decode(given.partition(" ")[2]).decode().partition(":")[2] != token:
            self.refuse(401, WWW_Authenticate='Basic realm="git"')
            return
        path, _, query = self.path.partition("?")
        if self.server.dumb:
            file = self.server.root / path.lstrip("/")
            if not file.is_file():
                self.refuse(404)
                return
            self._send(200, {}, file.read_bytes())
            return
        environment = {
            **os.environ,
            **_ALONE,
            "GIT_PROJECT_ROOT": str(self.server.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }
        if "Content-Length" in self.headers:
            environment["CONTENT_LENGTH"] = self.headers["Content-Length"]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        done = subprocess.run(
            ["git", "http-backend"], input=body, env=environment, capture_output=True, check=False
        )
        heading, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in heading.decode().split("\r\n") if ": " in line)
        self._send(int(fields.pop("Status", "200").split()[0]), fields, content)


class GitServer(http.server.ThreadingHTTPServer):
    """Serves the repositories below a directory.

    Args:
        root: Where they are.
        token: What clients must give as password.
        dumb: Whether it gives out plain files only.
        certificate: File with a key and its certificate, for TLS.
    """

    daemon_threads = True

    def __init__(
        self, root: Path, *, token: str = "", dumb: bool = False, certificate: Path | None = None
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root = root
        self.token = token
        self.dumb = dumb
        self.answers: list[Answer] = []
        """Asked first; one that answers itself returns True."""
        self.authorizations: list[str] = []
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def url(self, name: str = "repo") -> str:
        """The URL of one of the repositories."""
        return f"{self._scheme}://127.0.0.1:{self.server_address[1]}/{name}/.git"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are ended hang up."""

    def close(self) -> None:
        """End it."""
        self.shutdown()
        self.server_close()
        self._thread.join()


def make_certificate(path: Path) -> None:
    """Write a key and a certificate for 127.0.0.1, which is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
