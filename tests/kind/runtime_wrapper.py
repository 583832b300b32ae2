"""An OCI runtime for hosts whose root lacks some capabilities: drops those from what the engine asks for, then becomes runc.

`docker run --privileged` asks for every capability the kernel knows; where this process's bounding set lacks one, runc ends with
"unable to apply caps". On such hosts the engine is started with a copy of this file as its runtime, so it imports
nothing of ours.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

# Names by bit number, from capability.h of Linux.
NAMES = (
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
)


def missing_capabilities(status: str) -> frozenset[str]:
    """From the text of /proc/<pid>/status: the capabilities that the process can never have."""
    line = next(line for line in status.splitlines() if line.startswith("CapBnd:"))
    mask = int(line.split()[1], 16)
    return frozenset(f"CAP_{name}" for bit, name in enumerate(NAMES) if not mask >> bit & 1)


def strip(spec: dict[str, Any], missing: frozenset[str]) -> bool:  # Any: an OCI document, of which one part is read
    """Take `missing` out of a runtime spec or of a bare process document, in place; whether anything changed."""
    capabilities = spec.get("process", spec).get("capabilities") or {}
    changed = False
    for kind, names in capabilities.items():
        kept = [name for name in names or [] if name not in missing]
        changed |= kept != (names or [])
        capabilities[kind] = kept
    return changed


def spec_files(arguments: Sequence[str]) -> list[str]:
    """The files that a call of the runtime names: `config.json` of `--bundle`, and what `--process` points to."""
    found = []
    for i, argument in enumerate(arguments):
        flag, _, value = argument.partition("=")
        value = value or (arguments[i + 1] if i + 1 < len(arguments) else "")
        if flag in ("--bundle", "-b") and value:
            found.append(os.path.join(value, "config.json"))
        elif flag in ("--process", "-p") and value:
            found.append(value)
    return found


def main() -> None:
    """Strip the documents of this call, then exec runc with the same arguments."""
    with open("/proc/self/status") as file:
        missing = missing_capabilities(file.read())
    for path in spec_files(sys.argv[1:]):
        try:
            with open(path) as file:
                spec = json.load(file)
        except (OSError, ValueError):
            continue  # runc itself says best what is wrong with it
        if strip(spec, missing):
            with open(path, "w") as file:
                json.dump(spec, file)
    os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
    os.execvp("runc", ["runc", *sys.argv[1:]])


if __name__ == "__main__":
    main()
