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


@everstep.step(effect="read")
def compose(effects: str, text: str) -> everstep.Artifact:
    """The ground that all editions stand on; made once."""
    effect(effects, "compose")
    path = Path("out/ground.bin")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode() * (SIZE // len(text)))
    path.chmod(0o640)
    return everstep.artifact(path)


@everstep.step(effect="read")
def bring_out(effects: str, number: int) -> str:
    """An edition: reads the ground and the edition before, replaces that, and leaves a proof that is thrown away again."""
    effect(effects, f"edition-{number}")
    edition, ground = Path("out/edition.txt"), Path("out/ground.bin")
    before = edition.read_text(encoding="utf-8") if number else ""
    edition.write_text(f"{before}{number}", encoding="utf-8")
    Path("out/proof.txt").write_text(str(number), encoding="utf-8")
    everstep.artifact(edition)
    everstep.artifact("out/proof.txt")
    return f"{ground.stat().st_size} {oct(ground.stat().st_mode & 0o777)} {edition.read_text(encoding='utf-8')}"


@everstep.step(effect="idempotent")
def throw_away() -> None:
    """The proof is not needed any more."""
    Path("out/proof.txt").unlink(missing_ok=True)


@everstep.agent
async def editions(goal: str, effects: str, number: int = 3) -> list[str]:
    """A snapshot after each; no restart is given a result of before."""
    told = everstep.restored(list[str])
    if told is None:
        await compose.aio(effects, "ground")
        told = []
        everstep.snapshot(told)
    while len(told) < number:
        told.append(await bring_out.aio(effects, len(told)))
        await throw_away.aio()
        everstep.snapshot(told)
    await look(effects, "end")
    return told


@everstep.agent
async def volumes(goal: str, effects: str, number: int = 0, told: list[str] | None = None) -> list[str]:
    """A segment for each edition."""
    if not told:
        await compose.aio(effects, "ground")
    told = [*(told or []), await bring_out.aio(effects, number)]
    await throw_away.aio()
    if number < 2:
        everstep.continue_as_new(effects=effects, number=number + 1, told=told)
    await look(effects, "end")
    return told


EDITIONS = [f"{SIZE // 6 * 6} 0o640 {'012'[: n + 1]}" for n in range(3)]
