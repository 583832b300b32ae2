"""Pins: image and Python belong to a run until somebody changes them on purpose, and only after a replay under the new ones."""

import asyncio
from typing import Any

import pytest

import everstep
from everstep.errors import Diverged
from everstep.journal.records import Pinned, RunStarted
from everstep.run.agents import Agent
from everstep.run.pins import same_image
from everstep.testing import Ended, MemoryRun

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64
V1, V2 = "registry.example/agent:1", "registry.example/agent:2"
D1, D2 = f"registry.example/agent@{A}", f"registry.example/agent@{B}"


@everstep.step(effect="read")
async def look(n: int) -> int:
    return n


def agent(second: int = 2) -> Agent[..., Any]:
    @everstep.agent
    async def pinned(goal: str) -> int:
        first = await look(1)
        await asyncio.sleep(0.1)
        return first + await look(second) + await look(3)

    return pinned


def begun(image: str = V1, crash_at: str = "in_body:3") -> MemoryRun[Any]:
    run: MemoryRun[Any] = MemoryRun(agent(), "go")
    told(run, image, image.partition("@")[0])
    assert run.attempt(crash_at=crash_at).kind == "crashed"
    return run


def told(run: MemoryRun[Any], image: str, named: str | None) -> MemoryRun[Any]:
    run.image, run.image_named = image, named
    return run


def pins(run: MemoryRun[Any]) -> list[tuple[str, str, str]]:
    return [(r.image, r.named, r.by) for r in run.records if isinstance(r, Pinned)]


def refused(ended: Ended[Any]) -> str:
    assert isinstance(ended.error, Diverged), ended
    return ended.message


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (V1, V1, True),
        (V1, V2, False),
        (D1, D2, False),
        (D1, f"mirror.example/agent@{A}", True),
        (V1, D1, None),
        (D1, V2, None),
        (V1, f"registry.example/other@{A}", False),
        ("agent:1", "docker.io/library/agent:1", True),
        ("agent:1", f"docker.io/library/agent@{A}", None),
        ("host:5000/agent", f"host:5000/agent@{A}", None),
        ("host:5000/agent:1", f"host:5000/agent@{A}", None),
    ],
)
def test_what_counts_as_the_same_image(one: str, other: str, same: bool | None) -> None:
    assert same_image(one, other) is same
    assert same_image(other, one) is same


def test_the_same_image_goes_on_and_its_digest_is_pinned_when_it_is_known() -> None:
    run = begun()
    assert told(run, V1, V1).attempt(crash_at="in_body:1").kind == "crashed"
    assert pins(run) == []
    assert told(run, D1, V1).attempt(crash_at="in_body:1").kind == "crashed"
    assert pins(run) == [(D1, V1, "operator")]
    assert told(run, D1, V1).run() == 6
    assert pins(run) == [(D1, V1, "operator")]
    started = run.records[0]
    assert isinstance(started, RunStarted)
    assert started.image == V1


def test_a_tag_that_moved_is_refused_and_named_with_the_cure() -> None:
    """The spec names what it named before, so nobody chose the new digest."""
    run = begun()
    told(run, D1, V1).attempt(crash_at="in_body:1")
    length = len(run.records)
    message = refused(told(run, D2, V1).attempt())
    assert D1 in message
    assert D2 in message
    assert "repin RUN --image" in message
    assert len(run.records) == length
    assert told(run, D1, V1).run() == 6


@pytest.mark.parametrize("other", [V2, "registry.example/other:1", f"registry.example/other@{B}"])
def test_another_default_image_is_refused(other: str) -> None:
    """The spec names none; the operator's default has moved on."""
    run: MemoryRun[Any] = MemoryRun(agent(), "go")
    told(run, V1, "").attempt(crash_at="in_body:3")
    assert other in refused(told(run, other, "").attempt())
    assert told(run, V1, "").run() == 6


@pytest.mark.parametrize("image", [V2, D2])
def test_an_image_chosen_in_the_spec_goes_on_and_is_pinned_once_it_has_replayed(image: str) -> None:
    run = begun()
    assert told(run, image, V2).attempt(crash_at="in_replay:1").kind == "crashed"
    assert pins(run) == []
    run.python = "3.99"  # comes with the image
    assert told(run, image, V2).run() == 6
    assert pins(run) == [(image, V2, "spec")]
    assert next(r for r in run.records if isinstance(r, Pinned)).python == "3.99"
    run.replay()


def test_an_image_chosen_in_the_spec_that_tells_another_story_is_refused_and_the_old_one_goes_on() -> None:
    run = begun()
    length = len(run.records)
    run.agent = agent(second=7)
    assert "other arguments" in refused(told(run, V2, V2).attempt())
    assert len(run.records) == length
    run.agent = agent()
    assert told(run, V1, V1).run() == 6
    assert pins(run) == []


def test_an_image_nobody_tells_of_is_not_compared() -> None:
    run = begun()
    assert told(run, V2, None).run() == 6


def test_python_is_pinned_where_no_image_was_chosen() -> None:
    run: MemoryRun[Any] = MemoryRun(agent(), "go")
    run.attempt(crash_at="in_body:3")
    run.python = "3.99"
    message = refused(run.attempt())
    assert "another Python" in message
    assert "everstep local repin RUN" in message
    run.python = ""
    assert run.run() == 6


def test_the_pin_is_kept_over_a_crash_around_its_write() -> None:
    for point in ("before_append", "after_append"):
        for n in range(1, 6):
            run = begun()
            ended = told(run, D2, V2).attempt(crash_at=f"{point}:{n}")
            assert told(run, D2, V2).run() == 6
            assert pins(run) == [(D2, V2, "spec")], (point, n)
            run.replay()
            if ended.kind != "crashed":
                break
