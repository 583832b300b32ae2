"""`make bench`: every figure in one run, printed and written to .bench/latest.json.

BENCH_QUICK=1 takes fewer rounds. Figures are for comparing on one machine; none of them fails anything.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.bench import journal_overhead, replay

REPOSITORY = Path(__file__).resolve().parents[2]
SIZE_BYTES = 4000
IMPORTS = 15


def import_ms(module: str) -> float:
    """Median milliseconds that `import module` adds to an empty interpreter."""

    def once(code: str) -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY)
        return (time.perf_counter() - begin) * 1000

    bare = sorted(once("pass") for _ in range(IMPORTS))[IMPORTS // 2]
    full = sorted(once(f"import {module}") for _ in range(IMPORTS))[IMPORTS // 2]
    return full - bare


def main() -> None:
    """Measure, print, write."""
    quick = os.environ.get("BENCH_QUICK") == "1"
    rounds = 400 if quick else 1500
    figures: list[dict[str, object]] = []

    def figure(name: str, value: float, unit: str) -> None:
        figures.append({"name": name, "value": round(value, 4), "unit": unit})

    print(f"one durable step ({SIZE_BYTES} bytes) next to one bare durable write of the same bytes, interleaved")
    for one in (
        asyncio.run(journal_overhead.sqlite_overhead(rounds, SIZE_BYTES)),
        asyncio.run(journal_overhead.redis_overhead("redis-7.0", rounds, SIZE_BYTES)),
        asyncio.run(journal_overhead.redis_overhead("valkey-8", rounds, SIZE_BYTES)),
    ):
        print(f"  {one}", flush=True)
        name = one.name.partition("-")[0]
        figure(f"overhead_ratio_{name}", one.ratio, "ratio")
        figure(f"step_p50_{name}_ms", one.step_p50_ms, "ms")
        figure(f"step_p99_{name}_ms", one.step_p99_ms, "ms")
    print("replay in a fresh process, the agent running, chain verified")
    for steps in (1000, 10_000):
        done = asyncio.run(replay.measure(steps))
        print(f"  {done}", flush=True)
        name = f"replay_{steps // 1000}k"
        figure(f"{name}_s", done.replay_ms / 1000, "s")
        figure(f"{name}_peak_bytes", done.peak_bytes, "bytes")
    imported = import_ms("everstep")
    used = import_ms("everstep.run.steps")
    print(f"import everstep {imported:.0f} ms; with its step decorator in use {used:.0f} ms")
    figure("import_ms", imported, "ms")
    figure("import_used_ms", used, "ms")
    target = REPOSITORY / ".bench" / "latest.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps({"figures": figures}, indent=2) + "\n", encoding="utf-8")
    print(f"written to {target.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
