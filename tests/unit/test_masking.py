"""Secrets in arguments are shown to nobody, and replay as they are."""

from typing import Any

import pytest

import everstep
from everstep.errors import BadStep
from everstep.run.masking import HIDDEN, masked
from everstep.testing import MemoryRun

SHOWN: list[tuple[Any, tuple[str, ...], Any]] = [
    ({"password": "x", "user": "jane"}, (), {"password": HIDDEN, "user": "jane"}),
    (
        {"Api-Key": "x", "apiKey": "y", "x_auth_token": "z"},
        (),
        {"Api-Key": HIDDEN, "apiKey": HIDDEN, "x_auth_token": HIDDEN},
    ),
    (
        {"headers": {"Authorization": "Bearer x", "Accept": "*"}},
        (),
        {"headers": {"Authorization": HIDDEN, "Accept": "*"}},
    ),
    ({"max_tokens": 9, "tokens": [1]}, (), {"max_tokens": 9, "tokens": [1]}),
    ({"token": None}, (), {"token": None}),
    ({"token": {"deep": 1}}, (), {"token": HIDDEN}),
    ({"pin": 1, "card": {"number": 4, "pin": 2}}, ("pin",), {"pin": HIDDEN, "card": {"number": 4, "pin": HIDDEN}}),
    (
        {"number": 1, "card": {"number": 4, "name": "j"}},
        ("card.number",),
        {"number": 1, "card": {"number": HIDDEN, "name": "j"}},
    ),
    ({"cards": [{"number": 4}, {"number": 5}]}, ("cards.number",), {"cards": [{"number": HIDDEN}, {"number": HIDDEN}]}),
    ({"a": {"b": {"c": 1, "d": 2}}}, ("a.b.c", "a.x"), {"a": {"b": {"c": HIDDEN, "d": 2}}}),
    (["plain", 3, None], ("pin",), ["plain", 3, None]),
]


@pytest.mark.parametrize(("value", "mask", "shown"), SHOWN)
def test_what_is_shown(value: Any, mask: tuple[str, ...], shown: Any) -> None:
    before = repr(value)
    assert masked(value, mask) == shown
    assert repr(value) == before, "what replays is another object"


got: list[tuple[str, str, dict[str, str]]] = []


@everstep.step(effect="at_most_once", mask=("pin", "card.number"))
async def pay(password: str, pin: str, card: dict[str, str]) -> str:
    got.append((password, pin, card))
    return "paid"


@everstep.agent
async def shop(goal: str) -> str:
    return await pay("hunter2", "4711", {"number": "4000", "name": "jane"})


def test_a_question_shows_no_secret_and_the_step_still_gets_them() -> None:
    got.clear()
    run: MemoryRun[str] = MemoryRun(shop, "go")
    assert run.attempt(crash_at="after_intent").kind == "crashed"
    ended = run.attempt(predecessor_dead=False)
    assert ended.kind == "parked"
    assert ended.waits[0].arguments == {"password": HIDDEN, "pin": HIDDEN, "card": {"number": HIDDEN, "name": "jane"}}
    text = b"".join(run.raw_records)
    assert not [word for word in (b"hunter2", b"4711", b"4000") if word in text]
    run.settle(ended.waits[0].key, "again")
    assert run.attempt().value == "paid"
    assert got == [("hunter2", "4711", {"number": "4000", "name": "jane"})]


@pytest.mark.parametrize("mask", ["pin", ("",), (1,), (".",)])
def test_a_mask_that_names_nothing_is_refused(mask: Any) -> None:
    with pytest.raises(BadStep, match="mask must list"):
        everstep.step(effect="read", mask=mask)
