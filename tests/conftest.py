"""Rules that hold for every tier: what a test may touch, and that CI skips nothing."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

IN_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}
TESTS = Path(__file__).parent


def _tier(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """In CI a skip is a failure: a missing server or cluster must be brought up, never passed over."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]  # pluggy's wrapper protocol is untyped
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, which counts as a failure: {report.longrepr}"


@pytest.fixture(autouse=True)
def _unit_tests_touch_nothing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unit and sim tests are offline: connecting anywhere raises."""
    if _tier(request.node) not in {"unit", "sim", "tidy"}:
        return

    def refuse(self: socket.socket, address: object) -> None:
        raise AssertionError(f"a unit test tried to connect to {address!r}; it may touch nothing")

    monkeypatch.setattr(socket.socket, "connect", refuse)
