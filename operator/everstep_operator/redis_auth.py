"""`python -m everstep_operator.redis_auth …`: passwords of the Redis that comes with the chart, then the operator itself.

A chart cannot make a password: a template that is random gives another one at each rendering, and tools that render at each sync
would lock everybody out. So the operator makes the Secret once if it is absent and never overwrites it. Its keys:

    users.acl           Redis' ACL file, passwords as SHA-256; Redis' pod mounts this key alone and waits until it exists
    url                 for the operator: this installation's keys, INFO and CONFIG GET
    agent-url           for agents' pods: this installation's keys, without the commands that list, delete or expire keys
    admin-password      user `admin`, every right; for people alone

User `probe` needs no password and may PING, nothing else. User `default` is off, so nobody is it, but has every right:
a server that loads its append-only file acts as `default`, and Redis (7.0 and 8.0 at least) and Valkey before 9 then silently
drop every transaction that this user may not make, which is every step in every journal. The URLs are also written to files in
`--out`, named by EVERSTEP_STORE_URL_FILE and EVERSTEP_AGENT_STORE_URL_FILE; then this process
goes on as `python -m everstep_operator`.
"""

import argparse
import asyncio
import base64
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from everstep.clock import Clock, SystemClock
from everstep.errors import ConfigError, EverstepError
from everstep_operator.cluster.api import KubeApi, TokenBucket, load_client
from everstep_operator.cluster.own import OwnSecrets

KEY_ACL: Final = "users.acl"
KEY_URL: Final = "url"
KEY_AGENT_URL: Final = "agent-url"
KEY_ADMIN_PASSWORD: Final = "admin-password"

API_TIMEOUT_S: Final = 20.0
PASSWORD_BYTES: Final = 32

# Everything that is neither administrative nor dangerous, on this installation's keys. Agents' pods may not list, delete,
# expire or rename keys either: a run knows its own journal by name, and journals of others are none of its business.
_COMMON: Final = "+@all -@admin -@dangerous"
_USERS: Final = {
    "operator": f"{_COMMON} +info +config|get +acl|getuser",
    "agent": f"{_COMMON} -@keyspace +exists +info",
}


@dataclass(frozen=True)
class Place:
    """Which Redis, and for whom."""

    host: str
    port: int
    installation: str
    """Its keys all begin with `es:<installation>:`."""


def secret_data(place: Place, clock: Clock) -> dict[str, str]:
    """The Secret's content, with fresh passwords."""
    passwords = {user: clock.random_bytes(PASSWORD_BYTES).hex() for user in (*_USERS, "admin")}
    lines = [
        "user default off resetpass ~* &* +@all",
        "user probe on nopass resetkeys resetchannels -@all +ping",
    ]
    for user, rights in _USERS.items():
        lines.append(f"user {user} on #{_sha256(passwords[user])} ~es:{place.installation}:* resetchannels {rights}")
    lines.append(f"user admin on #{_sha256(passwords['admin'])} ~* &* +@all")
    where = f"{place.host}:{place.port}/0"
    return {
        KEY_ACL: "\n".join(lines) + "\n",
        KEY_URL: f"redis://operator:{passwords['operator']}@{where}",
        KEY_AGENT_URL: f"redis://agent:{passwords['agent']}@{where}",
        KEY_ADMIN_PASSWORD: passwords["admin"],
    }


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


async def ensure_secret(api: KubeApi, namespace: str, name: str, fresh: Mapping[str, str]) -> dict[str, str]:
    """The Secret's content: what is there, or `fresh` if nothing was.

    Raises ConfigError if the Secret lacks a key, ClusterUnavailable or ClusterRefused if it can be neither read nor made."""
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/part-of": "everstep"}},
        "type": "Opaque",
        "stringData": dict(fresh),
    }
    found = await OwnSecrets(api, namespace).made_once(name, lambda: body)
    data = {key: base64.b64decode(value).decode() for key, value in (found.get("data") or {}).items()}
    if missing := sorted(fresh.keys() - data.keys()):
        raise ConfigError(
            f"Secret {namespace}/{name} lacks {', '.join(missing)}. It is made by the operator; if it was made by hand, add the "
            "keys. If it may be lost: delete it, restart the operator, then delete Redis' pod, which reads the new passwords"
        )
    return data


def write_urls(data: Mapping[str, str], folder: Path) -> None:
    """Write the URLs where only this user can read them."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for key in (KEY_URL, KEY_AGENT_URL):
        target = folder / key
        target.unlink(missing_ok=True)
        with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(data[key])


async def _prepare(arguments: argparse.Namespace, clock: Clock) -> None:
    client = await load_client(API_TIMEOUT_S)
    api = KubeApi(client, TokenBucket(10.0, 10, clock.monotonic_s), timeout_s=API_TIMEOUT_S)
    place = Place(arguments.host, arguments.port, arguments.installation)
    try:
        data = await ensure_secret(api, arguments.namespace, arguments.secret, secret_data(place, clock))
    finally:
        await api.aclose()
    write_urls(data, arguments.out)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Make or read the Secret, write the URLs, become the operator. Exits 1 with the reason on standard error if it cannot."""
    parser = argparse.ArgumentParser(prog="everstep_operator.redis_auth", description=__doc__)
    parser.add_argument("--namespace", required=True, help="of the Secret")
    parser.add_argument("--secret", required=True, help="name of the Secret")
    parser.add_argument("--host", required=True, help="Redis as agents' pods reach it")
    parser.add_argument("--port", type=int, default=6379)
    parser.add_argument("--installation", required=True, help="EVERSTEP_INSTALLATION")
    parser.add_argument("--out", type=Path, required=True, help="folder for the files url and agent-url")
    arguments = parser.parse_args(argv)
    try:
        asyncio.run(_prepare(arguments, SystemClock()))
    except (EverstepError, OSError) as e:
        print(f"redis-auth: {e}", file=sys.stderr)
        sys.exit(1)
    # In this process rather than by exec: importing everything a second time would double the time of a restart.
    from everstep_operator.__main__ import main as become_the_operator

    become_the_operator(args=[])
    sys.exit(0)


if __name__ == "__main__":
    main()
