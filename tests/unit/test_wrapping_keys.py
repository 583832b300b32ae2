"""The operator's key-encryption keys: made once, rotated without a moment in which a data key could get lost."""

import asyncio
import base64
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any, cast

import pytest
from tests.component.mock_cluster.objects import json_patch

from everstep.clock import SystemClock
from everstep.errors import ConfigError
from everstep.ids import Attempt, JournalId, Seq
from everstep.journal.chain import Chain
from everstep.journal.datakeys import fresh_keys, wrapped_fields
from everstep.journal.memory import MemoryStore
from everstep.journal.store import Head
from everstep_operator.cluster.api import KubeApi
from everstep_operator.cluster.own import OwnSecrets
from everstep_operator.errors import NotFound, TestFailed
from everstep_operator.settings import Settings
from everstep_operator.wrapping_keys import Wrapping, read_wrapping_keys

CLOCK = SystemClock()
KEY = base64.b64encode(b"k" * 32).decode()
SETTINGS = Settings(operator_namespace="ops", store_url="redis://unused")
FIRST, SECOND = JournalId("00000000-0000-4000-8000-000000000001"), JournalId("00000000-0000-4000-8000-000000000002")


class OneSecret:
    """An API server with one Secret."""

    def __init__(self) -> None:
        self.secret: dict[str, Any] | None = None
        self.refuse_removal = False
        self.patched = asyncio.Event()

    async def read(self, path: str) -> Any:
        if self.secret is None:
            raise NotFound("404", status=404, reason="NotFound")
        return json.loads(json.dumps(self.secret))

    async def write(self, method: str, path: str, body: Any, **_: Any) -> Any:
        if method == "POST":
            self.secret = {**body, "metadata": {**body["metadata"], "resourceVersion": "1"}}
        else:
            assert self.secret is not None
            if body[0]["value"] != self.secret["metadata"]["resourceVersion"]:
                raise TestFailed("422", status=422, reason="Invalid")
            if self.refuse_removal and body[-1]["op"] == "remove":
                raise ConnectionError("the process dies here")
            self.secret = json_patch(self.secret, body[1:])
            self.secret["metadata"]["resourceVersion"] += "1"
            self.patched.set()
        return await self.read(path)

    def ids(self) -> list[str]:
        assert self.secret is not None
        return sorted(self.secret["data"])


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OneSecret:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the locks are
    return OneSecret()


def wrapping(api: OneSecret, installation: str = SETTINGS.installation) -> Wrapping:
    settings = dataclasses.replace(SETTINGS, installation=installation)
    return Wrapping(OwnSecrets(cast(KubeApi, api), "ops"), settings, CLOCK)


async def first_key(keys: Wrapping, store: MemoryStore) -> None:
    async with keys.held(store):
        pass


async def begin(store: MemoryStore, keys: Wrapping, journal: JournalId) -> dict[str, bytes]:
    """As the operator fences a new run."""
    data_keys = fresh_keys(CLOCK.random_bytes)
    async with keys.held(store) as ring:
        fields = wrapped_fields(ring, journal, data_keys, CLOCK.random_bytes)
        await store.fence(journal, Attempt(1), Head(Seq(0), Chain(journal).genesis()), fields)
    return data_keys


async def opened(store: MemoryStore, api: OneSecret, journal: JournalId) -> dict[str, bytes]:
    """What a process that starts now can unwrap."""
    meta = await store.meta(journal)
    assert meta is not None
    sealer = await wrapping(api).sealer(journal, meta.fields)
    assert sealer is not None
    return dict(sealer.keys)


async def test_made_once(api: OneSecret) -> None:
    store = MemoryStore()
    await wrapping(api).check()
    assert api.secret is None, "not before a run begins encrypted"
    kept = await begin(store, wrapping(api), FIRST)
    first = api.secret
    await begin(store, wrapping(api), SECOND)
    assert api.secret == first
    assert api.ids() == ["w1"]
    assert await opened(store, api, FIRST) == kept


async def test_another_installation_with_the_same_key_secret_is_refused(api: OneSecret) -> None:
    """Its rotation would look at its own journals and remove the keys that these need."""
    store = MemoryStore()
    kept = await begin(store, wrapping(api), FIRST)
    other = wrapping(api, "blue")
    for act in (other.check, lambda: first_key(other, MemoryStore()), lambda: other.rotate(MemoryStore())):
        with pytest.raises(
            ConfigError, match=r"installation default, and this is blue: give each .* journal\.keySecret"
        ):
            await act()
    assert api.secret is not None
    del api.secret["metadata"]["annotations"]  # as an earlier version made it, or as it was restored by hand
    await other.check()
    assert await opened(store, api, FIRST) == kept


async def test_a_lost_secret_is_not_made_again_under_the_same_name(api: OneSecret) -> None:
    """Else restoring it would lose the runs that began meanwhile."""
    store = MemoryStore()
    before = await begin(store, wrapping(api), FIRST)
    lost, api.secret = api.secret, None
    after = await begin(store, wrapping(api), SECOND)
    assert api.ids() == ["w2"]
    with pytest.raises(ConfigError, match="wrapped under w1, which is not here"):
        await opened(store, api, FIRST)
    assert lost is not None
    api.secret["data"] |= lost["data"]  # type: ignore[index]  # it was made again
    assert await opened(store, api, FIRST) == before
    assert await opened(store, api, SECOND) == after


async def test_a_fence_under_way_is_waited_for(api: OneSecret) -> None:
    """It wraps under the key that the rotation is about to remove, into a journal that is not there yet."""
    store, keys = MemoryStore(), wrapping(api)
    await first_key(keys, store)
    data_keys = fresh_keys(CLOCK.random_bytes)
    async with keys.held(store) as ring:
        rotation = asyncio.create_task(wrapping(api).rotate(store))
        await api.patched.wait()
        for _ in range(50):
            await asyncio.sleep(0)  # turns enough to list no journal and remove w1, if it did not wait
        assert api.ids() == ["w1", "w2"], "no key goes as long as somebody wraps"
        fields = wrapped_fields(ring, FIRST, data_keys, CLOCK.random_bytes)
        await store.fence(FIRST, Attempt(1), Head(Seq(0), Chain(FIRST).genesis()), fields)
    assert await rotation == 1
    assert api.ids() == ["w2"]
    assert await opened(store, api, FIRST) == data_keys


@pytest.mark.parametrize("fenced", ["before", "between", "after"])
async def test_a_rotation_in_another_pod(api: OneSecret, tmp_path: Path, fenced: str) -> None:
    """Its locks are not ours. The fence lands before the rotation removes the key, between that and its last look, or after."""
    store, ours, theirs = MemoryStore(), wrapping(api), wrapping(api)
    await first_key(ours, store)
    theirs._locks = tmp_path / "other"
    theirs._locks.mkdir()
    data_keys = fresh_keys(CLOCK.random_bytes)
    async with ours.held(store) as ring:
        fields = wrapped_fields(ring, FIRST, data_keys, CLOCK.random_bytes)

        async def fence() -> None:
            await store.fence(FIRST, Attempt(1), Head(Seq(0), Chain(FIRST).genesis()), fields)

        if fenced == "before":
            await fence()
        elif fenced == "between":
            plain = api.write

            async def remove_and_fence(method: str, path: str, body: Any, **more: Any) -> Any:
                done = await plain(method, path, body, **more)
                if body[-1]["op"] == "remove":
                    await fence()
                return done

            api.write = remove_and_fence  # type: ignore[method-assign]  # the moment is the point
        await theirs.rotate(store)
        if fenced == "after":
            await fence()
    assert api.ids() == ["w2"]
    assert await opened(store, api, FIRST) == data_keys


async def test_one_rotation_at_a_time(api: OneSecret) -> None:
    store, keys = MemoryStore(), wrapping(api)
    await first_key(keys, store)
    kept = await begin(store, keys, FIRST)
    assert sorted(await asyncio.gather(*(wrapping(api).rotate(store) for _ in range(3)))) == [1, 1, 1]
    assert api.ids() == ["w4"]
    assert await opened(store, api, FIRST) == kept


async def test_a_rotation_that_was_cut_off_is_completed_by_the_next(api: OneSecret) -> None:
    store, keys = MemoryStore(), wrapping(api)
    await first_key(keys, store)
    kept = await begin(store, keys, FIRST)
    api.refuse_removal = True
    with pytest.raises(ConnectionError):
        await keys.rotate(store)
    assert api.ids() == ["w1", "w2"]
    assert await opened(store, api, FIRST) == kept
    api.refuse_removal = False
    assert await wrapping(api).rotate(store) == 1
    assert api.ids() == ["w3"]
    assert await opened(store, api, FIRST) == kept


async def test_a_key_that_something_still_needs_stays(api: OneSecret) -> None:
    store, keys = MemoryStore(), wrapping(api)
    await first_key(keys, store)
    await begin(store, keys, FIRST)
    kept = await begin(store, keys, SECOND)
    await store.set_fields(FIRST, {"dataKey/d1": "w9:AAAA", "namespace": "prod", "name": "lost"})
    with pytest.raises(ConfigError, match=r"the old keys stay: prod/lost: .*w9"):
        await keys.rotate(store)
    assert api.ids() == ["w1", "w2"]
    assert await opened(store, api, SECOND) == kept


async def test_erased_is_erased_and_others_are_not(api: OneSecret) -> None:
    store, keys = MemoryStore(), wrapping(api)
    await first_key(keys, store)
    await begin(store, keys, FIRST)
    kept = await begin(store, keys, SECOND)
    before = await store.meta(FIRST)
    assert before is not None
    assert await keys.erase(store, FIRST) == (1, "")
    assert await opened(store, api, FIRST) == {}
    assert await opened(store, api, SECOND) == kept
    with pytest.raises(ConfigError, match="wrapped under w1, which is not here"):
        await wrapping(api).sealer(FIRST, before.fields)  # an older copy of the store


async def test_erased_although_older_keys_must_stay(api: OneSecret) -> None:
    store, keys = MemoryStore(), wrapping(api)
    await begin(store, keys, FIRST)
    await begin(store, keys, SECOND)
    await store.set_fields(SECOND, {"dataKey/d1": "w9:AAAA"})
    count, problem = await keys.erase(store, FIRST)
    assert (count, "w9" in problem) == (0, True)
    assert await opened(store, api, FIRST) == {}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"w1": "%%%"}, "w1 is not base64"),
        ({"w1": base64.b64encode(b"short").decode()}, "w1 holds 5 bytes, 32 are needed"),
        ({}, "holds no key"),
        *(({"w1": KEY, name: KEY}, "named w1, w2") for name in ("w1-old", "w01", "backup", "z9", "w²", "W2", "w0")),
    ],
)
def test_a_damaged_secret_is_named(data: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_wrapping_keys({"data": data}, "Secret ops/x")
