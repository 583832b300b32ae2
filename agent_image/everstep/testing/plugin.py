"""Fixtures for pytest. In your conftest.py:

pytest_plugins = ["everstep.testing.plugin"]

memory_run       MemoryRun itself, to make runs with: memory_run(agent, "goal", {…})
effects          an Effects, empty
scripted_model   makes ScriptedModels: scripted_model(["Hello."])
model_server     makes them serve over HTTP until the test ends; gives the base URL: model_server(["Hello."])
"""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from everstep.testing import Effects, MemoryRun, ScriptedModel
from everstep.testing.models import Script


@pytest.fixture
def memory_run() -> type[MemoryRun]:  # type: ignore[type-arg]  # of whatever the agent gives
    """See the module."""
    return MemoryRun


@pytest.fixture
def effects() -> Effects:
    """See the module."""
    return Effects()


@pytest.fixture
def scripted_model() -> Callable[[Script], ScriptedModel]:
    """See the module."""
    return ScriptedModel


@pytest.fixture
def model_server() -> Iterator[Callable[[Script | ScriptedModel], str]]:
    """See the module."""
    with contextlib.ExitStack() as open_servers:

        def serve(script: Script | ScriptedModel) -> str:
            model = script if isinstance(script, ScriptedModel) else ScriptedModel(script)
            return open_servers.enter_context(model.serve())

        yield serve
