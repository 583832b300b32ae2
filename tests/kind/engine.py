"""The Docker engine: the one that answers, else one that this tool starts and can stop again."""

from __future__ import annotations

import ipaddress
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.kind import debian, runtime_wrapper
from tests.kind.cache import Cache, write_atomically
from tests.kind.errors import CommandFailed, KindToolError
from tests.kind.shell import run, succeeds, wait_until

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
NOFILE_MAX = 1_048_576
RUN_FOLDER = Path("/run/everstep-docker")
PID_FILE = RUN_FOLDER / "dockerd.pid"
# Private ranges to choose from: the engine's default bridge (first free) and the nodes' network (next free).
SUBNETS = tuple(f"172.{second}.0.0/16" for second in (30, 31, 29, 28, 27, 26))
NETWORK = "kind"  # the name is kind's own
PACKAGE_OF = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "containerd": "containerd",
    "runc": "runc",
    "iptables": "iptables",
}
SYSTEM_PATHS = ":/usr/local/sbin:/usr/sbin:/sbin"


def which(program: str) -> str | None:
    """Where a program is, also in the folders that only root has on PATH."""
    return shutil.which(program, path=os.environ.get("PATH", "") + SYSTEM_PATHS)


def docker_path() -> Path:
    """The docker client. Raises KindToolError if there is none."""
    found = which("docker")
    if found is None:
        raise KindToolError("docker not found on PATH")
    return Path(found)


def answers() -> bool:
    """Whether an engine answers. Raises KindToolError where one is there but refuses us, since a second one would not help."""
    if which("docker") is None:
        return False
    try:
        run(["docker", "version", "--format", "{{.Server.Version}}"], timeout_s=10)
    except CommandFailed as e:
        if "permission denied" in e.output:
            raise KindToolError(
                "the Docker engine refuses this user: add it to group docker (and log in anew), or run as root"
            ) from e
        return False
    return True


def free_subnets(taken: Sequence[str], count: int) -> list[str]:
    """The first `count` of SUBNETS that overlap none of `taken` (networks in CIDR notation)."""
    used = [ipaddress.ip_network(text, strict=False) for text in taken]
    free = [text for text in SUBNETS if not any(ipaddress.ip_network(text).overlaps(network) for network in used)]
    if len(free) < count:
        raise KindToolError(f"no free private subnet for the nodes among {', '.join(SUBNETS)}")
    return free[:count]


def _routed_networks(without: str = "") -> list[str]:
    """The IPv4 networks this host has routes to, but those of the interface `without`."""
    lines = (run(["ip", "-4", "route", "show"]) if which("ip") else "").splitlines()
    kept = [line.split()[0] for line in lines if line.strip() and not (without and f"dev {without}" in line)]
    return [network for network in kept if re.fullmatch(r"[0-9./]+", network)]


def start(cache: Cache) -> None:
    """Start an engine of our own: its data in the cache, its process independent of this one.

    Installs Debian's packages where programs are missing. Raises KindToolError if it does not start and answer in time.
    """
    if host := os.environ.get("DOCKER_HOST"):
        raise KindToolError(
            f"no engine answers at DOCKER_HOST={host}; start it, or unset DOCKER_HOST to let one be started here"
        )
    if os.geteuid() != 0:
        raise KindToolError("no Docker engine answers, and only root can start one: start Docker, or run this as root")
    missing = sorted({package for program, package in PACKAGE_OF.items() if which(program) is None})
    if missing:
        debian.install_packages(missing, cache.logs / "engine-packages.log")
    if succeeds(["docker", "version"]):  # a package's own service may have come up
        return
    RUN_FOLDER.mkdir(parents=True, exist_ok=True)
    # The bridge of an engine that was stopped stays behind and is ours to take again.
    bridge = ipaddress.ip_network(free_subnets(_routed_networks(without="docker0"), 1)[0])
    command = ["dockerd", "--data-root", str(cache.root / "docker"), "--exec-root", str(RUN_FOLDER), "--pidfile", str(PID_FILE),
               "--host", "unix:///var/run/docker.sock", "--bip", f"{bridge[1]}/{bridge.prefixlen}", *_limits(cache)]  # fmt: skip
    log = cache.logs / "dockerd.log"
    with log.open("ab") as out:
        env = {**os.environ, "PATH": os.environ.get("PATH", "") + SYSTEM_PATHS}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, env=env
        )

    def up_or_dead() -> bool:
        if process.poll() is not None:
            raise KindToolError(f"dockerd ended with code {process.returncode}; the end of {log}:\n{_tail(log)}")
        return answers()

    wait_until(f"dockerd answers (log: {log})", up_or_dead, timeout_s=START_TIMEOUT_S)


def _limits(cache: Cache) -> list[str]:
    """Options for hosts whose root may not do everything: a runtime that asks for less, no more open files than are allowed."""
    missing = runtime_wrapper.missing_capabilities(Path("/proc/self/status").read_text())
    if not missing:
        return []
    wrapper = cache.bin / "everstep-runc"
    interpreter = Path(sys.executable).resolve()
    write_atomically(wrapper, f"#!{interpreter} -IS\n" + Path(runtime_wrapper.__file__).read_text())
    wrapper.chmod(0o755)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = NOFILE_MAX if hard == resource.RLIM_INFINITY else min(hard, NOFILE_MAX)
    return ["--add-runtime", f"fewer-capabilities={wrapper}", "--default-runtime", "fewer-capabilities",
            "--default-ulimit", f"nofile={files}:{files}"]  # fmt: skip


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def stop() -> bool:
    """Stop the engine that `start` started (by its pid file); whether there was one. Other engines are left alone."""
    try:
        pid = int(PID_FILE.read_text())
        program = Path(f"/proc/{pid}/comm").read_text().strip()
    except (OSError, ValueError):
        return False
    if program != "dockerd":
        return False
    os.kill(pid, signal.SIGTERM)
    wait_until(f"dockerd (pid {pid}) ends", lambda: not _alive(pid), timeout_s=STOP_TIMEOUT_S)
    return True


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def ensure_node_network() -> None:
    """Make the nodes' network and cut its way out of this host (needs root).

    Without the cut, a service address that kube-proxy has not programmed yet would leave by the default route.
    """
    if not succeeds(["docker", "network", "inspect", NETWORK]):
        subnet = ipaddress.ip_network(free_subnets(_routed_networks(), 1)[0])
        nodes = next(subnet.subnets(new_prefix=24))
        options = ["-o", "com.docker.network.bridge.name=br-kind", "--subnet", str(nodes)]
        run(["docker", "network", "create", "--driver", "bridge", *options, NETWORK])
    layout = '{{index .Options "com.docker.network.bridge.name"}} {{.Id}}'
    name, _, network_id = run(["docker", "network", "inspect", "--format", layout, NETWORK]).strip().rpartition(" ")
    bridge = name.strip() or f"br-{network_id[:12]}"
    rule = ["DOCKER-USER", "-i", bridge, "!", "-o", bridge, "-m", "conntrack", "--ctstate", "NEW", "-j", "DROP"]
    iptables = which("iptables")
    if iptables is None:
        raise KindToolError("iptables not found: it is needed to cut the nodes' way out of this host")
    if not succeeds([iptables, "-w", "-C", *rule]):
        run([iptables, "-w", "-I", *rule])
