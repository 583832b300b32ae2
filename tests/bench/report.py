"""The table (Markdown) and the plot (SVG) of what was measured, for docs/bench.md."""

import math
import statistics
from xml.sax.saxutils import escape

from tests.bench.side_by_side import PARALLEL, Row

KILL = "kill -9 to next step, ms"
COLUMNS = (
    *("engine", "p50 ms", "p99 ms", "× bare write", "fsyncs per step"),
    *(f"steps/s, {n} run{'s' * (n > 1)}" for n in PARALLEL),
    *(KILL, "bytes per step", "cold start, ms"),
)
SHORT = ("engine", "p50 ms", "× bare write", "fsyncs per step", KILL)
"""For the README."""


def ratio(row: Row, floor: Row | None) -> float | None:
    """Median of the ratios of turns taken next to each other."""
    if floor is None or not row.turns_p50_ms or not floor.turns_p50_ms:
        return None
    return statistics.median(a / b for a, b in zip(row.turns_p50_ms, floor.turns_p50_ms, strict=False))


def table(rows: list[Row], columns: tuple[str, ...] = COLUMNS) -> str:
    """One line per engine, the fastest first."""
    by_key = {row.contestant.key: row for row in rows}
    lines = [f"| {' | '.join(columns)} |", "| " + " | ".join(["---"] + ["---:"] * (len(columns) - 1)) + " |"]
    for row in sorted((r for r in rows if r.gaps_ms), key=lambda r: r.p50_ms):
        cells = [row.contestant.title, f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}"]
        cells.append(_shown(ratio(row, by_key.get(row.contestant.floor)), ".2f"))
        cells.append(_shown(row.fsyncs, ".2f"))
        cells += [_shown(row.steps_per_s.get(n), ".0f") for n in PARALLEL]
        cells += [_shown(row.resume_ms, ".0f"), _shown(row.bytes_per_step, ".0f"), _shown(row.cold_ms, ".0f")]
        shown = [cell for name, cell in zip(COLUMNS, cells, strict=True) if name in columns]
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def settings(rows: list[Row]) -> str:
    """What each engine says of its own durability."""
    lines = []
    for row in rows:
        if row.contestant.settings:
            said = ", ".join(f"{name} {value}" for name, value in row.contestant.settings.items() if value != [])
            lines.append(f"- {row.contestant.title}: {said}")
    return "\n".join(lines) + "\n"


def _shown(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


WIDTH, LEFT, RIGHT, LINE, TOP = 820, 220, 90, 26, 54


def plot(rows: list[Row]) -> str:
    """Bars from p50 on a logarithmic scale, with a whisker to p99."""
    shown = sorted((r for r in rows if r.gaps_ms), key=lambda r: r.p50_ms)
    low = 10 ** math.floor(math.log10(min(r.p50_ms for r in shown)))
    high = 10 ** math.ceil(math.log10(max(r.p99_ms for r in shown)))
    span = math.log10(high / low)

    def x(value_ms: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log10(max(value_ms, low) / low) / span

    height = TOP + LINE * len(shown) + 16
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        '<text x="12" y="22" font-size="15">One durable step of 4 KB: p50 (bar) and p99 (line), milliseconds, log scale</text>',
    ]
    tick = low
    while tick <= high * 1.001:
        out.append(f'<line x1="{x(tick):.1f}" y1="40" x2="{x(tick):.1f}" y2="{height - 10}" stroke="#ddd"/>')
        out.append(f'<text x="{x(tick):.1f}" y="38" text-anchor="middle" fill="#666" font-size="11">{tick:g}</text>')
        tick *= 10
    for n, row in enumerate(shown):
        y, key = TOP + n * LINE, row.contestant.key
        colour = "#1f6feb" if key.startswith("everstep") else "#b8b8b8" if key.startswith("bare") else "#e0a458"
        out.append(f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(row.contestant.title)}</text>')
        out.append(f'<rect x="{LEFT}" y="{y + 1}" width="{x(row.p50_ms) - LEFT:.1f}" height="16" fill="{colour}"/>')
        out.append(f'<line x1="{x(row.p50_ms):.1f}" y1="{y + 9}" x2="{x(row.p99_ms):.1f}" y2="{y + 9}" stroke="#444"/>')
        out.append(f'<text x="{x(row.p99_ms) + 5:.1f}" y="{y + 13}" fill="#222">{row.p50_ms:.2f}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"
