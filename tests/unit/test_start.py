"""The time from a loss to the next step is mostly the start of a Python process, and that is mostly imports."""

from pathlib import Path

from tests.support.starting import NOT_AT_THE_START, modules_at_first_body, needless


async def test_a_start_imports_nothing_that_few_runs_need(tmp_path: Path) -> None:
    modules = await modules_at_first_body(f"sqlite://{tmp_path}/journal.db", tmp_path)
    assert {"everstep.run.engine", "everstep.journal.sqlite_store"} <= modules, "it looked at a run"
    assert needless(modules) == set()
    assert "everstep.journal.redis_store" not in modules


def test_what_is_named_as_needless_would_be_found() -> None:
    assert needless({"asyncio", "redis", "redis.asyncio", "redistribute"}) == {"redis", "redis.asyncio"}
    own = [name for name in NOT_AT_THE_START if name.startswith("everstep.")]
    root = Path(__file__).resolve().parents[2] / "agent_image"
    gone = [
        n for n in own if not any((root / f"{n.replace('.', '/')}{end}").exists() for end in (".py", "/__init__.py"))
    ]
    assert gone == [], "renamed modules would stay out of the start unseen"
