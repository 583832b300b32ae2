"""How numbers, times and foreign words are written."""

import json
from datetime import UTC, datetime


def took(milliseconds: int | None) -> str:
    """`12 ms`, `0.3 s`, `1.2 s`, `2 m 05 s`, `3 h 10 m`; `-` for None."""
    if milliseconds is None:
        return "-"
    if milliseconds < 100:
        return f"{milliseconds} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    minutes, seconds = divmod(milliseconds // 1000, 60)
    if minutes < 60:
        return f"{minutes} m {seconds:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} m" if hours < 48 else f"{hours // 24} d"


def age(milliseconds: int) -> str:
    """As kubectl writes an age: `41s`, `3m`, `2h`, `5d`."""
    seconds = max(0, milliseconds) // 1000
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size or (unit == "d" and seconds >= size):
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def clock_time(epoch_ms: int, now_epoch_ms: int) -> str:
    """Local time of day: `10:02:11`, with the date if it is another day's than now."""
    then, now = datetime.fromtimestamp(epoch_ms / 1000), datetime.fromtimestamp(now_epoch_ms / 1000)
    return then.strftime("%H:%M:%S" if then.date() == now.date() else "%Y-%m-%d %H:%M:%S")


def iso(epoch_ms: int) -> str:
    """`2026-01-01T00:00:00Z`."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def tokens(counts: tuple[int, int]) -> str:
    """`812+96` (input + output); `-` when none were reported."""
    return f"{counts[0]}+{counts[1]}" if any(counts) else "-"


def short_hash(value: str) -> str:
    """`4f1c…a9`."""
    return f"{value[:4]}…{value[-2:]}" if len(value) > 8 else value


def clean(text: str, limit: int = 400) -> str:
    """One line without control characters: words of agents and models must not steer the terminal."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def harmless(text: str) -> str:
    """The same text without control characters other than line ends and tabs, for a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def plural(count: int, word: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def value(data: object) -> str:
    """A result for people: text as it is, anything else as indented JSON."""
    return data if isinstance(data, str) else json.dumps(data, indent=2, ensure_ascii=False)
