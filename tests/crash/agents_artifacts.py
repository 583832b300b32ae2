"""An agent whose steps make files; killed by test_artifacts."""

import hashlib
from pathlib import Path

import everstep
from tests.crash.agents import effect, look

SIZE = 9 * 1024 * 1024 + 17


@everstep.step(effect="read")
def render(effects: str) -> everstep.Artifact:
    """Makes a file of three chunks, with its own mode."""
    effect(effects, "render")
    path = Path("out/report.bin")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(range(256)) * (SIZE // 256) + b"\x07" * (SIZE % 256))
    path.chmod(0o640)
    return everstep.artifact(path)


@everstep.step(effect="read")
def summarise(effects: str, report: everstep.Artifact) -> dict[str, str]:
    """Reads the first one, and makes another beside its own result."""
    effect(effects, "summarise")
    found = hashlib.sha256(Path(report).read_bytes()).hexdigest()
    Path("out/summary.txt").write_text(found, encoding="utf-8")
    everstep.artifact("out/summary.txt")
    return {"found": found}


@everstep.agent
async def press(goal: str, effects: str) -> list[object]:
    report = await render.aio(effects)
    await look(effects, "between")
    summary = await summarise.aio(effects, report)
    mode = everstep.per_attempt(lambda: Path(report).stat().st_mode & 0o777)
    text = everstep.per_attempt(lambda: Path("out/summary.txt").read_text(encoding="utf-8"))
    await look(effects, "end")
    return [report.size, report.sha256, summary["found"] == report.sha256 == text, oct(mode)]
