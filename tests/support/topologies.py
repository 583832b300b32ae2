"""Servers together: a three-node cluster, a primary with a replica and sentinels, a server with TLS. All on loopback."""

import random
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.support import servers
from tests.support.servers import Server

WAIT_S = 20.0
_SLOTS = ((0, 5460), (5461, 10922), (10923, 16383))


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Poll every 50 ms; fails naming `what` after 20 s."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"timed out waiting for {what}")
        time.sleep(0.05)


@contextmanager
def cluster(name: str) -> Iterator[list[Server]]:
    """Three primaries that share the slots, no replicas."""
    with ExitStack() as stack:
        nodes = []
        for _ in _SLOTS:
            port = _port_with_bus()
            options = ("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--port", str(port))
            node = stack.enter_context(servers.running(name, *options))
            node.port = port
            nodes.append(node)
        for node, (first, last) in zip(nodes, _SLOTS, strict=True):
            node.cli("CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
            node.cli("CLUSTER", "MEET", "127.0.0.1", str(nodes[0].port))
        for node in nodes:
            wait_for(partial(_agrees, node), f"the cluster to form as {node.port} sees it")
        yield nodes


def _agrees(node: Server) -> bool:
    told = node.cli("CLUSTER", "INFO")
    return b"cluster_state:ok" in told and b"cluster_known_nodes:3" in told and b"cluster_size:3" in told


@dataclass
class Watched:
    """A primary, its replica, and the sentinels that watch them."""

    primary: Server
    replica: Server
    sentinel_ports: list[int]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.sentinel_ports)
        return f"redis+sentinel://{hosts}/journal"


@contextmanager
def sentinels(name: str, count: int = 3) -> Iterator[Watched]:
    """One primary, one replica in sync with it, and sentinels that fail over after half a second of silence."""
    with ExitStack() as stack:
        primary = stack.enter_context(servers.running(name, tcp=True))
        follow = ("--replicaof", f"127.0.0.1 {primary.port}")
        replica = stack.enter_context(servers.running(name, *follow, tcp=True))
        wait_for(lambda: b"master_link_status:up" in replica.cli("INFO", "replication"), "the replica to be in sync")
        ports = [servers.free_port() for _ in range(count)]
        for port in ports:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="everstep-sentinel-")))
            stack.callback(_end, _start_sentinel(name, folder, port, primary.port))
        for port in ports:
            wait_for(partial(_knows, port, count), f"sentinel {port} to know the replica and the others")
        yield Watched(primary, replica, ports)


def _start_sentinel(name: str, folder: Path, port: int, primary_port: int) -> "subprocess.Popen[bytes]":
    config = folder / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\nlogfile {folder}/log\n"
        f"sentinel monitor journal 127.0.0.1 {primary_port} 2\n"
        "sentinel down-after-milliseconds journal 500\nsentinel failover-timeout journal 4000\n"
    )
    return subprocess.Popen([*servers.require(name), str(config), "--sentinel"], stdin=subprocess.DEVNULL)


def _knows(port: int, count: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as s:
            s.sendall(b"SENTINEL MASTER journal\r\n")
            told = s.recv(1 << 16).split(b"\r\n")
    except OSError:
        return False
    fields = dict(zip(told[2::4], told[4::4], strict=False))
    return fields.get(b"num-slaves") == b"1" and fields.get(b"num-other-sentinels") == b"%d" % (count - 1)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


def _port_with_bus() -> int:
    """A free port whose bus port (+ 10000) is free, too."""
    for _ in range(100):
        port = random.randint(15_000, 25_000)
        if _free(port) and _free(port + 10_000):
            return port
    raise AssertionError("no free pair of ports")


def _free(port: int) -> bool:
    with socket.socket() as s:
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def make_certificates(folder: Path, alt_name: str = "IP:127.0.0.1") -> None:
    """`ca.crt`, and `server.crt` with `server.key` for `alt_name`, signed by it; `other.crt`, a CA that signed nothing."""
    words, env = servers.openssl()

    def run(*more: str) -> None:
        subprocess.run([*words, *more], cwd=folder, check=True, capture_output=True, env=env)

    for name in ("ca", "other"):
        subject = ["-subj", f"/CN=Everstep test {name}"]
        run(
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.crt",
            *subject,
        )
    run("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=127.0.0.1")
    (folder / "ext").write_text(f"subjectAltName={alt_name}\n")
    run(
        "x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
        "-extfile", "ext", "-out", "server.crt",
    )  # fmt: skip
