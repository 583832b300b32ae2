"""Redis is checked, not assumed: what a confirmed write is worth on the server that answers.

INFO is read first, CONFIG only for appendfsync, which INFO lacks. Where CONFIG is blocked (most managed services), the level must
be declared. Levels, strongest first:

    EveryWrite    each write is on disk before it is confirmed (appendonly yes, appendfsync always)
    Replicated    replicas are connected; a failover may lose what had not reached them, which the anchor then notices
    EverySecond   a power loss can lose the last second (appendfsync everysec)
    None          a restart can lose everything since the last dump, or all
"""

import enum
from collections.abc import Mapping, Sequence

from everstep.journal.store import DurabilityReport


class Level(enum.StrEnum):
    """The levels above, as journal.durability spells them."""

    EVERY_WRITE = "EveryWrite"
    REPLICATED = "Replicated"
    EVERY_SECOND = "EverySecond"
    NONE = "None"


_RANK = {Level.EVERY_WRITE: 3, Level.REPLICATED: 2, Level.EVERY_SECOND: 1, Level.NONE: 0}
_OLDEST = {"redis": (7, 0), "valkey": (7, 2)}
Info = Mapping[str, object]


def identity(infos: Mapping[str, Info]) -> str:
    """Of the server processes that answered: another one must be checked again."""
    return ",".join(sorted(str(info.get("run_id", "")) for info in infos.values()))


def report(infos: Mapping[str, Info], appendfsync: Sequence[str | None]) -> DurabilityReport:
    """Judge what was read, per node; the weakest node counts. `appendfsync` None: CONFIG is blocked there."""
    levels = [_level(info, fsync) for info, fsync in zip(infos.values(), appendfsync, strict=True)]
    level = None if None in levels else min((lv for lv in levels if lv), key=lambda lv: _RANK[Level(lv)], default=None)
    return refresh(DurabilityReport(level, (), "", identity(infos)), infos)


def refresh(known: DurabilityReport, infos: Mapping[str, Info]) -> DurabilityReport:
    """The same level with what INFO alone tells, which may change while the server runs."""
    problems = [p for node, info in infos.items() for p in _problems(info, f"{node}: " if node else "")]
    server = next((_server(info) for info in infos.values()), "redis")
    replicas = all(_number(info, "connected_slaves") > 0 for info in infos.values())
    return known._replace(problems=tuple(problems), server=server, replicated=replicas)


def judge(report: DurabilityReport, declared: str | None) -> list[str]:
    """Problems that keep new runs from starting, each with the line to add; [] when fine. `declared` is the setting
    journal.durability, None when it is not set (then EveryWrite is wanted and must be readable)."""
    problems = list(report.problems)
    try:
        wanted = Level(declared) if declared is not None else Level.EVERY_WRITE
    except ValueError:
        known = ", ".join(Level)
        return [*problems, f"journal.durability: {declared} is unknown; write one of {known}"]
    if wanted is Level.REPLICATED:
        if not report.replicated:
            problems.append(
                "journal.durability is Replicated, but no replica is connected: connect one, or declare what holds"
            )
        return problems
    if report.level is None:
        if declared is None:
            problems.append(
                "appendfsync cannot be read (CONFIG is blocked, as on managed services). Say what the service keeps: "
                "journal.durability: EveryWrite, EverySecond, Replicated or None"
            )
        return problems
    have = Level(report.level)
    if _RANK[have] < _RANK[wanted]:
        problems.append(_WEAKER[have])
    return problems


_WEAKER = {
    Level.EVERY_SECOND: (
        "appendfsync is everysec: a power loss can lose the last second. Set it to always, or journal.durability: EverySecond"
    ),
    Level.NONE: (
        "the append-only file is off or not synced: a restart can lose confirmed steps. Set appendonly yes and appendfsync "
        "always, or journal.durability: None"
    ),
}


DROPS = (
    "user default may not run every command on every key: this server acts as that user when it loads its append-only "
    "file, and silently drops every transaction, so a restart loses all journals. Write "
    "`user default off resetpass ~* &* +@all` in its ACL file"
)
"""Seen with Redis 7.0.15 and 8.0.2 and Valkey 8.1.1; Valkey 9 checks no rights while it loads."""


def drops_transactions(info: Info, default_user: object) -> bool:
    """Whether a restart loses what scripts wrote. `default_user`: what ACL GETUSER default says, None where it is not known."""
    name, version = _server(info).split(" ", 1)
    if default_user is None or (
        name == "valkey" and version.split(".")[0].isdigit() and int(version.split(".")[0]) >= 9
    ):
        return False
    told = _flat_words(default_user)
    return not ("+@all" in told and "~*" in told) or any(word.startswith("-") for word in told)


def _flat_words(reply: object) -> list[str]:
    """All words of a reply, whatever its nesting."""
    if isinstance(reply, Mapping):
        return [word for value in reply.values() for word in _flat_words(value)]
    if isinstance(reply, list | tuple | set | frozenset):
        return [word for part in reply for word in _flat_words(part)]
    return _plain(reply).split() if isinstance(reply, str | bytes) else []


def appendfsync_of(reply: object) -> str | None:
    """From CONFIG GET's reply, whose shape and text encoding differ by client settings; {} where it is blocked silently."""
    if isinstance(reply, Mapping):
        for key, value in reply.items():
            if _plain(key) == "appendfsync":
                return _plain(value)
    return None


def _level(info: Info, appendfsync: str | None) -> str | None:
    if "aof_enabled" not in info:
        return None
    if _number(info, "aof_enabled") == 0:
        return Level.NONE
    if appendfsync is None:
        return None
    return {"always": Level.EVERY_WRITE, "everysec": Level.EVERY_SECOND}.get(appendfsync, Level.NONE)


def _problems(info: Info, node: str) -> list[str]:
    problems = []
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        problems.append(
            f"{node}maxmemory-policy is {policy}: it evicts journals when memory is full. Set it to noeviction"
        )
    if info.get("role", "master") != "master":
        problems.append(
            f"{node}the server is a replica: point the store's URL at its primary (or use redis+sentinel://)"
        )
    name, version = _server(info).split(" ", 1)
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    least = _OLDEST[name]
    if numbers and numbers < least:
        problems.append(f"{node}{name} {version} is too old: Redis 7.0 or Valkey 7.2 is the least")
    if info.get("aof_last_write_status", "ok") != "ok":
        problems.append(f"{node}the last write to the append-only file failed: look at the server's disk and log")
    return problems


def _server(info: Info) -> str:
    if "valkey_version" in info:
        return f"valkey {info['valkey_version']}"
    return f"redis {info.get('redis_version', '?')}"


def _number(info: Info, name: str) -> int:
    value = info.get(name, 0)
    return int(value) if isinstance(value, int | str) and str(value).isdigit() else 0


def _plain(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
