"""Measures contestants next to each other: they take turns, so all see the same disk and the same neighbours."""

import os
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench import installed
from tests.bench.contestants import Child, CommandFailed, Contestant

WARM_UP = 10
"""Gaps at the start of each turn that do not count."""
PARALLEL = (1, 8, 64)


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rounds: int
    steps: int
    turns: int
    """Of throughput."""
    throughput_s: float
    """Each."""
    crashes: int
    colds: int


QUICK = Size(rounds=5, steps=50, turns=3, throughput_s=0.7, crashes=2, colds=2)
FULL = Size(rounds=12, steps=110, turns=5, throughput_s=2.0, crashes=5, colds=5)


@dataclass
class Row:
    """What was found of one contestant; None where it was not measured."""

    contestant: Contestant
    gaps_ms: list[float] = field(default_factory=list)
    turns_p50_ms: list[float] = field(default_factory=list)
    """Median of each turn: ratios are medians of the ratios of turns taken next to each other."""
    rates: dict[int, list[float]] = field(default_factory=dict)
    """Steps per second of each turn, by runs at once."""
    fsyncs: float | None = None
    resume_ms: float | None = None
    cold_ms: float | None = None
    bytes_per_step: float | None = None
    steps_done: int = 0
    failed: str = ""
    missing: list[str] = field(default_factory=list)
    """Single figures that could not be had, and why."""

    @property
    def steps_per_s(self) -> dict[int, float]:
        """Medians, by runs at once."""
        return {runs: statistics.median(rates) for runs, rates in self.rates.items()}

    @property
    def p50_ms(self) -> float:
        return statistics.median(self.gaps_ms)

    @property
    def p99_ms(self) -> float:
        return statistics.quantiles(self.gaps_ms, n=100)[98]


Say = Callable[[str], None]


def measure(contestants: list[Contestant], size: Size, say: Say, until_s: float) -> list[Row]:
    """Everything, one kind of figure after the other. After `until_s` (perf_counter) what is left is not measured."""
    rows = [Row(c) for c in contestants]
    children: dict[str, Child] = {}

    def each(what: str, act: Callable[[Row], None]) -> None:
        say(what)
        for row in rows:
            if row.failed or time.perf_counter() > until_s:
                continue
            try:
                act(row)
            except CommandFailed as e:
                row.missing.append(f"{what}: {e}")
                say(f"  {row.contestant.title}: {what}: {e}")
            except (installed.NotInstalled, BrokenPipeError, AssertionError) as e:
                row.failed = f"{what}: {e}"
                say(f"  {row.contestant.title}: {row.failed}")

    try:
        each("cold start", lambda row: _cold(row, size))
        each("processes", lambda row: _open(row, children))
        for n in range(size.rounds):
            each(f"latency, round {n + 1} of {size.rounds}", lambda row: _latency(row, children, size))
        for runs in PARALLEL * size.turns:
            each(f"{runs} runs at once", lambda row, runs=runs: _throughput(row, children, runs, size))  # type: ignore[misc]  # runs is bound now
        if shutil.which("strace"):
            each("fsyncs", lambda row: _fsyncs(row, children))
        else:
            say("fsyncs: not counted, there is no strace here")
        each("bytes", lambda row: _bytes(row, children))
        each("kill -9", lambda row: _crashes(row, size))
    finally:
        for child in children.values():
            child.kill()
    return rows


def _open(row: Row, children: dict[str, Child]) -> None:
    child = children[row.contestant.key] = row.contestant.spawn()
    child.hear()
    row.contestant.settings = child.ask(do="settings")["settings"]
    _steps(row, child, 30)


def _steps(row: Row, child: Child, steps: int) -> list[float]:
    row.steps_done += steps
    gaps: list[float] = child.ask(do="steps", run=row.contestant.name(), steps=steps)["gaps_ms"]
    return gaps


def _cold(row: Row, size: Size) -> None:
    """From the start of the process to the end of a run of one step."""
    took_ms = []
    for _ in range(size.colds):
        child = row.contestant.spawn()
        try:
            child.tell(do="steps", run=row.contestant.name(), steps=1)
            child.hear()
            child.hear()
            took_ms.append((time.perf_counter() - child.begun_s) * 1000)
        finally:
            child.kill()
    row.steps_done += size.colds
    row.cold_ms = statistics.median(took_ms)


def _latency(row: Row, children: dict[str, Child], size: Size) -> None:
    gaps = _steps(row, children[row.contestant.key], size.steps + WARM_UP)[WARM_UP:]
    row.gaps_ms += gaps
    row.turns_p50_ms.append(statistics.median(gaps))


def _throughput(row: Row, children: dict[str, Child], runs: int, size: Size) -> None:
    total = min(4000 * size.throughput_s, size.throughput_s / (row.p50_ms / 1000) * min(runs, 4))
    steps = max(4, int(total / runs))
    answer = children[row.contestant.key].ask(do="many", run=row.contestant.name(), runs=runs, steps=steps)
    row.steps_done += runs * steps
    row.rates.setdefault(runs, []).append(runs * steps / answer["wall_s"])


# --- fsyncs ------------------------------------------------------------------------------------------------------


def _fsyncs(row: Row, children: dict[str, Child]) -> None:
    """Of the process and its server: what 100 further steps of a run add."""
    child, few, many = children[row.contestant.key], 20, 120
    counts = [_counted(row, child, steps) for steps in (few, many)]
    row.fsyncs = (counts[1] - counts[0]) / (many - few)


def _counted(row: Row, child: Child, steps: int) -> int:
    pids = [child.process.pid]
    if row.contestant.server_pid is not None:
        pids += [row.contestant.server_pid, *_descendants(row.contestant.server_pid)]
    out = row.contestant.folder.parent / f"{row.contestant.key}.strace"
    argv = ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync,msync,sync_file_range", "-o", str(out)]
    for pid in pids:
        argv += ["-p", str(pid)]
    tracer = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 20
        while not all(_traced(pid) for pid in pids):
            assert tracer.poll() is None, "strace could not attach"
            assert time.monotonic() < deadline, "strace did not attach in time"
            time.sleep(0.02)
        _steps(row, child, steps)
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait(20)
        if tracer.stderr is not None:
            tracer.stderr.close()
    return sum("resumed" not in line for line in out.read_text(encoding="utf-8").splitlines() if "sync" in line)


def _traced(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "TracerPid:\t0" not in status.read_text(encoding="utf-8")


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            child = int(stat.parent.name)
            found += [child, *_descendants(child)]
    return found


# --- disk --------------------------------------------------------------------------------------------------------


def _bytes(row: Row, children: dict[str, Child]) -> None:
    """What a turn leaves on disk. A server's folder is looked at before and after; a file once its process has closed it."""
    child, folder, steps = children[row.contestant.key], row.contestant.folder, 200
    if row.contestant.server_pid is not None:
        before = _size_bytes(folder)
        _steps(row, child, steps)
        child.ask(do="close")
        row.bytes_per_step = max(0, _size_bytes(folder) - before) / steps
    else:
        child.ask(do="close")
        row.bytes_per_step = _size_bytes(folder) / row.steps_done
    child.kill()


def _size_bytes(folder: Path) -> int:
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            path = Path(base) / name
            if path.is_file() and not path.is_symlink() and name != "log":
                total += path.stat().st_size
    return total


# --- crashes -----------------------------------------------------------------------------------------------------


def _crashes(row: Row, size: Size) -> None:
    """kill -9 in the body of step 150; from there to the start of the first body in a fresh process on the same store."""
    steps, at = 200, 150
    if row.contestant.key.startswith("bare"):
        return
    took_ms = []
    for _ in range(1 if row.p50_ms > 20 else size.crashes):
        name = row.contestant.name()
        child = row.contestant.spawn()
        try:
            child.hear()
            child.tell(do="hold", run=name, steps=steps, at=at)
            assert child.hear() == {"reached": at}
        finally:
            child.kill()
        begin = time.perf_counter()
        second = row.contestant.spawn()
        try:
            second.tell(do="resume", run=name, steps=steps)
            second.hear()
            first = second.hear()["first"]
            took_ms.append((time.perf_counter() - begin) * 1000)
            assert first == at, f"went on at step {first}, not at {at}"
        finally:
            second.kill()
    row.resume_ms = statistics.median(took_ms)
