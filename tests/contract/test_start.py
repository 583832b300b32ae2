"""An attempt on one Redis starts without redis-py (see everstep.journal.redis_pipe)."""

from pathlib import Path

import pytest

from tests.support import servers
from tests.support.starting import modules_at_first_body, needless


@pytest.mark.parametrize("tcp", [True, False], ids=["tcp", "socket"])
@pytest.mark.parametrize("name", servers.NAMES)
async def test_a_start_on_redis_imports_nothing_that_few_runs_need(name: str, tcp: bool, tmp_path: Path) -> None:
    with servers.running(name, tcp=tcp) as server:
        modules = await modules_at_first_body(server.url, tmp_path)
    assert "everstep.journal.redis_store" in modules, "it looked at a run on Redis"
    assert needless(modules) == set()
