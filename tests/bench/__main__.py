"""`make bench`: every figure in one run, printed and written to .bench/latest.json.

    BENCH_QUICK=1 make bench           fewer rounds; within 8 minutes, the installation of peers included
    make bench BENCH='--write-docs'    also writes the table, the settings and the plot into docs/bench.md and docs/bench.svg
    EVERSTEP_BENCH_DIR=/mnt/disk       where everything is kept while it is measured; default the folder for temporary files

Figures are for comparing on one machine; none of them fails anything.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.bench import journal_overhead, replay, report, side_by_side
from tests.bench.contestants import gather

REPOSITORY = Path(__file__).resolve().parents[2]
SIZE_BYTES = 4000
IMPORTS = 15
QUICK_S = 390.0
FULL_S = 3600.0
"""After that no further measurement of engines begins."""
MARKS = ("<!-- begin: written by make bench -->", "<!-- end: written by make bench -->")


def import_ms(module: str) -> float:
    """Median milliseconds that `import module` adds to an empty interpreter."""

    def once(code: str) -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY)
        return (time.perf_counter() - begin) * 1000

    bare = sorted(once("pass") for _ in range(IMPORTS))[IMPORTS // 2]
    full = sorted(once(f"import {module}") for _ in range(IMPORTS))[IMPORTS // 2]
    return full - bare


class Figures:
    """What goes into .bench/latest.json."""

    def __init__(self) -> None:
        self.figures: list[dict[str, object]] = []

    def add(self, name: str, value: float | None, unit: str) -> None:
        if value is not None:
            self.figures.append({"name": name, "value": round(value, 4), "unit": unit})

    def write(self) -> None:
        target = REPOSITORY / ".bench" / "latest.json"
        target.parent.mkdir(exist_ok=True)
        target.write_text(json.dumps({"figures": self.figures}, indent=2) + "\n", encoding="utf-8")
        print(f"written to {target.relative_to(REPOSITORY)}")


def journal(figures: Figures, quick: bool) -> None:
    """The journal alone: what `durable` costs next to a bare write, sample by sample."""
    rounds = 500 if quick else 2000
    print(f"one durable step ({SIZE_BYTES} bytes) next to one bare durable write of the same bytes, interleaved")
    for name in ("sqlite", "redis-7.0", "redis-8", "valkey-8"):
        one = asyncio.run(
            journal_overhead.sqlite_overhead(rounds, SIZE_BYTES)
            if name == "sqlite"
            else journal_overhead.redis_overhead(name, rounds, SIZE_BYTES)
        )
        print(f"  {one}", flush=True)
        short = {"redis-7.0": "redis", "redis-8": "redis8", "valkey-8": "valkey"}.get(name, name)
        figures.add(f"overhead_ratio_{short}", one.ratio, "ratio")
        figures.add(f"overhead_ratio_{short}_raw_socket", one.raw_ratio, "ratio")
        figures.add(f"step_p50_{short}_ms", one.step_p50_ms, "ms")
        figures.add(f"step_p99_{short}_ms", one.step_p99_ms, "ms")
    for writers in (1, 8):
        rate = asyncio.run(journal_overhead.redis_throughput("redis-7.0", writers, 1.5 if quick else 4.0, SIZE_BYTES))
        print(f"  {writers} writers in one loop on Redis 7.0: {rate:.0f} steps/s", flush=True)
        figures.add(f"writers_{writers}_redis_steps_per_s", rate, "steps/s")


def lifetime(figures: Figures) -> None:
    """Replay and imports."""
    print("replay in a fresh process, the agent running, chain verified")
    for steps in (1000, 10_000):
        done = asyncio.run(replay.measure(steps))
        print(f"  {done}", flush=True)
        name = f"replay_{steps // 1000}k"
        figures.add(f"{name}_s", done.replay_ms / 1000, "s")
        figures.add(f"{name}_peak_bytes", done.peak_bytes, "bytes")
    imported = import_ms("everstep")
    used = import_ms("everstep.run.steps")
    print(f"import everstep {imported:.0f} ms; with its step decorator in use {used:.0f} ms")
    figures.add("import_ms", imported, "ms")
    figures.add("import_used_ms", used, "ms")


def engines(figures: Figures, quick: bool, until_s: float, docs: bool) -> None:
    """Whole engines, each in its own process, taking turns."""
    missing: list[str] = []

    def note(title: str, why: str) -> None:
        missing.append(f"- {title}: not measured: {why}")
        print(f"  {title}: not measured: {why}", flush=True)

    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="everstep-bench-")))
        work.chmod(0o755)  # a server that does not run as root must reach its folder
        print(f"engines side by side, in {work} ({_file_system(work)})", flush=True)
        contestants = gather(work, stack, note)
        size = side_by_side.QUICK if quick else side_by_side.FULL
        rows = side_by_side.measure(contestants, size, lambda text: print(f"  {text}", flush=True), until_s)
    by_key = {row.contestant.key: row for row in rows}
    for row in rows:
        key = row.contestant.key
        missing += [f"- {row.contestant.title}: {why}" for why in (*row.missing, row.failed) if why]
        if not row.gaps_ms:
            continue
        prefix = key.replace("everstep_", "engine_step_") if key.startswith("everstep_") else key
        figures.add(f"{prefix}_p50_ms", row.p50_ms, "ms")
        figures.add(f"{prefix}_p99_ms", row.p99_ms, "ms")
        figures.add(f"{prefix}_ratio", report.ratio(row, by_key.get(row.contestant.floor)), "ratio")
        figures.add(f"{prefix}_fsyncs", row.fsyncs, "fsyncs/step")
        for runs, rate in row.steps_per_s.items():
            figures.add(f"{prefix}_{runs}_runs_steps_per_s", rate, "steps/s")
        figures.add(f"{prefix}_resume_ms", row.resume_ms, "ms")
        figures.add(f"{prefix}_bytes_per_step", row.bytes_per_step, "bytes")
        figures.add(f"{prefix}_cold_ms", row.cold_ms, "ms")
    told = report.table(rows) + "\nSettings, as each engine gives them back:\n\n" + report.settings(rows)
    if missing:
        told += "\nNot measured:\n\n" + "\n".join(missing) + "\n"
    print(told)
    if docs:
        _write_docs(told, rows)


def _write_docs(told: str, rows: list[side_by_side.Row]) -> None:
    """The plot, and between the two marks of docs/bench.md and of the README."""
    machine = (
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}, with a load "
        f"average of {os.getloadavg()[2]:.1f} over the last 15 minutes (the bench alone makes about 1)"
    )
    _between_marks(REPOSITORY / "docs" / "bench.md", f"Measured on {machine}.\n\n{told}")
    _between_marks(REPOSITORY / "README.md", "\n" + report.table(rows, report.SHORT) + "\n")
    (REPOSITORY / "docs" / "bench.svg").write_text(report.plot(rows), encoding="utf-8")
    print("written to docs/bench.md, docs/bench.svg and README.md")


def _between_marks(page: Path, text: str) -> None:
    before, rest = page.read_text(encoding="utf-8").split(MARKS[0])
    page.write_text(f"{before}{MARKS[0]}\n{text}{MARKS[1]}{rest.split(MARKS[1])[1]}", encoding="utf-8")


def _file_system(path: Path) -> str:
    said = subprocess.run(["stat", "-f", "-c", "%T", str(path)], capture_output=True, text=True, check=False).stdout
    name = said.strip() or "unknown file system"
    return f"{name}: a sync costs nothing here, so the figures mean little" if name == "tmpfs" else name


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Everstep's figures")
    parser.add_argument(
        "--write-docs", action="store_true", help="also write docs/bench.md, docs/bench.svg and README.md"
    )
    parser.add_argument("--only", choices=("journal", "lifetime", "engines"), help="one part alone")
    given = parser.parse_args()
    quick = os.environ.get("BENCH_QUICK") == "1"
    until_s = time.perf_counter() + (QUICK_S if quick else FULL_S)
    if "EVERSTEP_BENCH_DIR" in os.environ:
        tempfile.tempdir = os.environ["EVERSTEP_BENCH_DIR"]
    figures = Figures()
    if given.only in (None, "journal"):
        journal(figures, quick)
    if given.only in (None, "lifetime"):
        lifetime(figures)
    if given.only in (None, "engines"):
        engines(figures, quick, until_s, given.write_docs)
    figures.write()


if __name__ == "__main__":
    main()
