"""Random agent programs as data: a tree of operations drawn from a seed, which can be printed, journaled and shrunk.

A node is `[kind, n, children]`, JSON throughout. `n` is random and unique in its tree; whatever an operation needs besides its
children (an argument, how long it waits, how many workers) is drawn from `n` alone, so that taking other nodes away changes
nothing about it.
"""

import random
from collections.abc import Iterator
from typing import Any

Node = list[Any]  # [kind, n, [Node, …]]: JSON cannot say it better

CALLS = ("look", "put", "fail", "pay", "aio")
QUIET = ("sleep", "value", "turn")
RISKY = ("slow", "blind")
"""Steps with a time-out, and at_most_once steps that nobody can look up: a crash may rightly change what comes of them."""
INNER = (
    "gather", "gather_exceptions", "group", "group_breaks", "completed", "completed_coroutines", "wait_first", "wait_some",
    "timeout", "wait_for", "cancel", "queue", "lock", "semaphore", "event", "condition", "shield", "sequence", "nested",
    "generator", "attempt",
)  # fmt: skip
WIDE = frozenset(INNER) - {"timeout", "wait_for", "shield", "attempt", "cancel", "event"}
"""Operations over several others; of the rest, `cancel` and `event` take two, the others one."""

CONSTRUCTS = {
    "gather": ("gather", "gather_exceptions"),
    "TaskGroup": ("group", "group_breaks"),
    "as_completed": ("completed", "completed_coroutines"),
    "wait FIRST_COMPLETED": ("wait_first",),
    "wait with time-out": ("wait_some",),
    "nested tasks": ("nested",),
    "cancellation": ("cancel",),
    "exceptions": ("attempt", "boom"),
    "time-outs": ("timeout", "wait_for"),
    "locks": ("lock",),
    "semaphores": ("semaphore",),
    "queues": ("queue",),
    "events": ("event",),
    "conditions": ("condition",),
    "shield": ("shield",),
    "async generators": ("generator",),
    "sleeps": ("sleep",),
    "values": ("value",),
    "sync steps (.aio)": ("aio",),
    "sync agents": ("sync_agent",),
    "snapshots": ("snapshot",),
    "continue_as_new": ("continue",),
    "tries": ("put",),
    "failures": ("fail",),
    "at_most_once": ("pay",),
    "step time-outs": ("slow",),
    "steps without a probe": ("blind",),
    "SIGTERM": ("terminated",),
}
"""What is counted: each must occur (and run) in at least a tenth of the programs."""


def program(seed: int) -> Node:
    """The program of a seed: `["agent" | "rounds" | "sync_agent", n, operations]`."""
    rng = random.Random(f"program {seed}")
    if rng.random() < 0.13:
        return ["sync_agent", _n(rng), [_sync(rng, 0) for _ in range(rng.randint(2, 6))]]
    maker = _Maker(rng, risky=rng.random() < 0.3)
    kind = "rounds" if rng.random() < 0.35 else "agent"
    return [kind, _n(rng), [maker.node(0, catches=kind == "rounds") for _ in range(rng.randint(2, 4))]]


class _Maker:
    def __init__(self, rng: random.Random, *, risky: bool) -> None:
        self.rng = rng
        self.left = rng.randint(8, 18)
        self.leaves = [*CALLS, "look", *QUIET, *(RISKY * 2 if risky else ())]

    def node(self, depth: int, *, catches: bool) -> Node:
        """`catches`: something above takes exceptions."""
        self.left -= 1
        rng = self.rng
        if depth >= 3 or self.left <= 0 or rng.random() < 0.15:
            kind = "boom" if catches and rng.random() < 0.15 else rng.choice(self.leaves)
            return [kind, _n(rng), []]
        kind = rng.choice(INNER)
        catches = catches or kind in ("attempt", "gather_exceptions", "group", "group_breaks", "cancel")
        width = rng.randint(2, 4) if kind in WIDE else 2 if kind in ("cancel", "event") else 1
        return [kind, _n(rng), [self.node(depth + 1, catches=catches) for _ in range(width)]]


def _sync(rng: random.Random, depth: int) -> Node:
    if depth < 2 and rng.random() < 0.3:
        kind = rng.choice(("sequence", "attempt"))
        return [kind, _n(rng), [_sync(rng, depth + 1) for _ in range(rng.randint(1, 3))]]
    return [rng.choice((*CALLS, *QUIET)), _n(rng), []]


def _n(rng: random.Random) -> int:
    return rng.randrange(1 << 48)


def nodes(tree: Node) -> Iterator[Node]:
    yield tree
    for child in tree[2]:
        yield from nodes(child)


def is_risky(tree: Node) -> bool:
    return any(node[0] in RISKY for node in nodes(tree))


def smaller(tree: Node) -> Iterator[Node]:
    """The tree with one operation less, in each possible way: a child taken away, or put into its parent's place."""
    kind, n, children = tree
    for i, child in enumerate(children):
        rest = children[:i] + children[i + 1 :]
        if rest and (kind in WIDE or kind in ("agent", "rounds", "sync_agent")):
            yield [kind, n, rest]
        if child[2]:
            for grandchild in child[2]:
                yield [kind, n, [*children[:i], grandchild, *children[i + 1 :]]]
        for less in smaller(child):
            yield [kind, n, [*children[:i], less, *children[i + 1 :]]]


def shown(tree: Node, indent: str = "") -> str:
    """For people: one operation per line."""
    kind, n, children = tree
    return "\n".join([f"{indent}{kind} {n}", *(shown(child, indent + "  ") for child in children)])
