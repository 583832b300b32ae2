"""Spreads programs over the cores: each chunk runs in a process of its own, which takes what lost attempts leave with it."""

import gc
import multiprocessing
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from everstep.journal.open import open_store
from everstep.journal.store import Store
from tests.property import checks, crashes, planted, trees
from tests.property.checks import Broken
from tests.property.trees import Node

CHUNK = 100
SHRINK_S = 30.0
ENOUGH = 5
"""Failures after which no more programs are tried."""
In, Out = TypeVar("In"), TypeVar("Out")


@dataclass
class Found:
    seed: int
    message: str
    program: str

    def __str__(self) -> str:
        again = f"EVERSTEP_SEED={self.seed} EVERSTEP_PROGRAMS=1"
        return f"seed {self.seed} ({again}): {self.message}\nthe smallest program found that fails:\n{self.program}"


@dataclass
class Tally:
    """What came of some programs."""

    programs: int = 0
    attempts: int = 0
    crashes: int = 0
    fixed: int = 0
    tied: int = 0
    ran: Counter[str] = field(default_factory=Counter)
    stores: Counter[str] = field(default_factory=Counter)
    found: list[Found] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        self.programs += other.programs
        self.attempts += other.attempts
        self.crashes += other.crashes
        self.fixed += other.fixed
        self.tied += other.tied
        self.ran += other.ran
        self.stores += other.stores
        self.found += other.found

    def table(self) -> str:
        """How many programs ran each construct."""
        lines = [
            f"{self.programs} programs, {self.attempts} attempts, {self.crashes} crashes; stores: "
            + ", ".join(f"{n} {name}" for name, n in self.stores.most_common()),
            f"{self.fixed} compared with their undisturbed run, {self.tied} not for a tie, the rest has free latencies",
        ]
        lines += [f"  {name:<22} {100 * self.share(name):5.1f} %" for name in trees.CONSTRUCTS]
        return "\n".join(lines)

    def share(self, construct: str) -> float:
        return self.ran[construct] / max(1, self.programs)


@dataclass(frozen=True)
class Chunk:
    first: int
    count: int
    redis_url: str


def store_of(seed: int) -> str:
    """Memory mostly; a twentieth on SQLite, a fortieth on Redis."""
    return "redis" if seed % 40 == 7 else "sqlite" if seed % 20 == 3 else "memory"


@contextmanager
def opener(seed: int, redis_url: str) -> Iterator[Callable[[], Store] | None]:
    """What opens the store of this seed's run, anew for each attempt."""
    name = store_of(seed)
    if name == "memory":
        yield None
    elif name == "redis":

        def connect() -> Store:
            return crashes.Busy(open_store(redis_url, installation=f"p{seed}"))  # type: ignore[return-value]  # it passes calls on

        yield connect
    else:
        folder = Path(tempfile.mkdtemp(prefix="everstep-property-"))
        try:
            yield lambda: open_store(f"sqlite:///{folder}/journal.db", installation="p")
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def run_chunk(chunk: Chunk) -> Tally:
    crashes.install()
    gc.disable()  # the process is short-lived, and what lost attempts left behind would be looked through again and again
    tally = Tally()
    for seed in range(chunk.first, chunk.first + chunk.count):
        with opener(seed, chunk.redis_url) as open_real:
            tally.programs += 1
            tally.stores[store_of(seed)] += 1
            try:
                verdict = checks.check(seed, open_real=open_real)
            except Exception as e:
                tally.found.append(found(seed, e))
                continue
        tally.attempts += verdict.attempts
        tally.crashes += verdict.crashes
        tally.fixed += verdict.fixed
        tally.tied += verdict.tied
        tally.ran.update(name for name, kinds in trees.CONSTRUCTS.items() if verdict.ran & set(kinds))
    return tally


def found(seed: int, why: Exception) -> Found:
    """A failure and a smaller program that fails in memory, too."""
    tree = trees.program(seed)
    until = time.monotonic() + SHRINK_S
    while time.monotonic() < until:
        less = next((t for t in trees.smaller(tree) if time.monotonic() < until and breaks(seed, t)), None)
        if less is None:
            break
        tree = less
    said = str(why) if isinstance(why, Broken) else f"{type(why).__name__}: {why}"
    return Found(seed, said, trees.shown(tree))


def breaks(seed: int, tree: Node) -> bool:
    try:
        checks.check(seed, tree)
    except Exception:
        return True
    return False


def run_programs(first: int, count: int, redis_url: str) -> Tally:
    """All of them, unless several failed already."""
    chunks = [Chunk(at, min(CHUNK, first + count - at), redis_url) for at in range(first, first + count, CHUNK)]
    total = Tally()
    for tally in spread(run_chunk, chunks):
        total.add(tally)
        if len(total.found) >= ENOUGH:
            break
    return total


@dataclass(frozen=True)
class Hunt:
    """A planted bug, and the programs among which it must be found."""

    bug: str
    first: int
    count: int


@dataclass(frozen=True)
class Caught:
    bug: str
    programs: int
    """Tried until it was found; 0: it was not."""
    message: str


def hunt(order: Hunt) -> Caught:
    crashes.install()
    gc.disable()
    planted.BUGS[order.bug]()
    for seed in range(order.first, order.first + order.count):
        try:
            checks.check(seed)
        except Exception as e:
            return Caught(order.bug, seed - order.first + 1, (str(e) or type(e).__name__).splitlines()[0])
    return Caught(order.bug, 0, "not found")


def spread(work: Callable[[In], Out], orders: list[In]) -> Iterator[Out]:
    """One process per core, a new one for each order; in whatever order they end."""
    context = multiprocessing.get_context("forkserver")  # plain fork and the pool's threads do not go together
    context.set_forkserver_preload(["tests.property.pool"])
    with context.Pool(min(len(orders), multiprocessing.cpu_count()), maxtasksperchild=1) as processes:
        yield from processes.imap_unordered(work, orders)
