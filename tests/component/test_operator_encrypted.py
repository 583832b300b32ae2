"""Encrypted runs on the operator: real operator and inspect processes, a real Redis, a mock API server."""

import asyncio
import base64
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from everstep import contract
from everstep.ids import JournalId
from everstep.journal.inbox import SettleBody, read_body
from everstep.journal.records import Finished
from tests.component.mock_cluster.agent import now_ms
from tests.component.mock_cluster.objects import ApiError, Json
from tests.component.mock_cluster.rig import NAMESPACE, ROOT, Rig, rig

ON = {"EVERSTEP_ENCRYPT": "true"}
SYSTEM = "everstep-system"
WORD = "hunter-of-secrets"


@pytest.fixture
async def bench() -> AsyncIterator[Rig]:
    async with rig() as made:
        yield made


async def ask(bench: Rig, *words: str, encrypt: bool = True) -> Json:
    """One document."""
    return dict(json.loads(await said(bench, *words, encrypt=encrypt)))


async def said(bench: Rig, *words: str, encrypt: bool = True) -> bytes:
    """One `python -m everstep_operator.inspect`, as kubectl exec runs it."""
    env = bench.operators[0].env | (ON if encrypt else {"EVERSTEP_ENCRYPT": "false"})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "everstep_operator.inspect", *words,
        env=env, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out


def about(bench: Rig, name: str) -> list[str]:
    run = bench.run(name)
    anchor = run["status"]["checkpoint"]
    return [
        *("--run", name, "--namespace", NAMESPACE, "--journal", run["metadata"]["uid"]),
        *("--anchor", f"{anchor['seq']}:{anchor['hash']}"),
    ]


def secret(bench: Rig, name: str, namespace: str = NAMESPACE) -> dict[str, str]:
    return dict(bench.server.objects.get("secrets", namespace, name)["data"])


async def everything_in(bench: Rig) -> bytes:
    """All that Redis holds, every key of every type."""
    import redis.asyncio

    client: Any = redis.asyncio.Redis.from_url(bench.redis.url)
    try:
        found = []
        for key in await client.keys("*"):
            kind = await client.type(key)
            if kind == b"hash":
                found.append(await client.hgetall(key))
            elif kind == b"stream":
                found.append(await client.xrange(key))
            elif kind == b"set":
                found.append(await client.smembers(key))
            else:
                found.append(await client.get(key))
        return repr(found).encode()
    finally:
        await client.aclose()


async def finished(bench: Rig, name: str, value: object = WORD) -> None:
    """A run of one step, to its end."""
    await bench.apply(name)
    agent = await bench.agent(f"{name}-1")
    await agent.step("0")
    await agent.finish(value)
    await bench.until(lambda: bench.condition(name, "Finished").startswith("True"), "the run is finished")


async def test_a_run_is_unreadable_in_the_store_and_readable_by_command(bench: Rig) -> None:
    await bench.operator(**ON).start()
    await finished(bench, "hello")
    stored = await everything_in(bench)
    assert b"finished" in stored
    assert WORD.encode() not in stored
    assert list(secret(bench, "everstep-keys-wrapping", SYSTEM)) == ["w1"]
    wrapping = base64.b64decode(secret(bench, "everstep-keys-wrapping", SYSTEM)["w1"])
    data_keys = json.loads(base64.b64decode(secret(bench, "hello-run")[contract.FILE_DATA_KEYS]))
    assert list(data_keys) == ["d1"]
    everywhere = json.dumps(list(bench.server.objects.find("secrets", NAMESPACE, "")))
    assert base64.b64encode(wrapping).decode() not in everywhere, "no pod's Secret holds a key-encryption key"
    assert "result" not in bench.status("hello"), "a short result could be guessed from its digest"
    assert WORD not in json.dumps(bench.run("hello"))

    assert (await ask(bench, "result", *about(bench, "hello")))["result"] == WORD
    assert [s["name"] for s in (await ask(bench, "steps", *about(bench, "hello")))["steps"]] == ["work"]
    assert (await ask(bench, "verify", *about(bench, "hello")))["whole"]
    sent = await said(bench, "export", *about(bench, "hello"))
    assert b'"end"' in sent
    assert b'"signature"' in sent
    assert WORD.encode() not in sent


async def test_a_failures_words_are_not_in_the_status(bench: Rig) -> None:
    await bench.operator(**ON).start()
    await bench.apply("hello")
    agent = await bench.agent("hello-1")
    end = Finished(seq=0, attempt=agent.attempt, time=now_ms(), outcome="failed", type="ValueError", message=WORD)
    await agent.write(end)
    await agent.exit(70)
    await bench.until(lambda: bench.condition("hello", "Finished").startswith("True"), "the run is finished")
    assert "ValueError: (encrypted)" in json.dumps(bench.status("hello"))
    assert WORD not in json.dumps(bench.run("hello"))
    assert (await ask(bench, "result", *about(bench, "hello")))["message"] == WORD


async def test_it_is_decided_when_a_run_begins(bench: Rig) -> None:
    """Runs begun without stay plain, runs begun with stay encrypted, over losses of pod, Secret and operator."""
    plain = bench.operator()
    await plain.start()
    await bench.apply("plain")
    agent = await bench.agent("plain-1")
    await plain.kill()
    on = bench.operator(**ON)
    await on.start()
    await bench.evict("plain-1")
    agent = await bench.agent("plain-2")
    await agent.finish("still plain")
    await bench.until(lambda: bench.condition("plain", "Finished").startswith("True"), "the plain run is finished")
    await bench.apply("sealed")
    first = await bench.agent("sealed-1")
    await first.step("0")
    kept = secret(bench, "sealed-run")[contract.FILE_DATA_KEYS]
    await on.kill()
    await bench.server.objects.delete("secrets", NAMESPACE, "sealed-run", {})
    await plain.start()
    await bench.evict("sealed-1")
    second = await bench.agent("sealed-2")
    assert secret(bench, "sealed-run")[contract.FILE_DATA_KEYS] == kept, "made anew from the journal's meta"
    await second.finish(WORD)
    await bench.until(lambda: bench.condition("sealed", "Finished").startswith("True"), "the run is finished")
    stored = await everything_in(bench)
    assert b"still plain" in stored
    assert WORD.encode() not in stored
    assert (await ask(bench, "result", *about(bench, "sealed"), encrypt=False))["result"] == WORD
    assert contract.FILE_DATA_KEYS not in secret(bench, "plain-run")


async def test_what_people_are_asked_is_shown_and_their_answers_are_sealed(bench: Rig) -> None:
    await bench.operator(**ON).start()
    run = await bench.apply("hello")
    first = await bench.agent("hello-1")
    await first.park_uncertain("3")
    await first.exit(0)
    objects = bench.server.objects
    (question,) = await bench.until(lambda: objects.find("humanrequests", NAMESPACE, ""), "a question is asked")
    assert question["spec"]["arguments"] == {"to": "x"}
    question["spec"]["response"] = {
        "decision": "done", "by": "jane", "value": WORD, "argumentsDigest": question["spec"]["argumentsDigest"],
    }  # fmt: skip
    await objects.replace("humanrequests", question)
    second = await bench.agent("hello-2")
    (entry,) = await bench.store.inbox_read(JournalId(run["metadata"]["uid"]))
    assert WORD.encode() not in entry.body
    assert second.chain is not None
    body = read_body(second.chain, entry)
    assert isinstance(body, SettleBody)
    assert body.value == WORD
    assert WORD.encode() not in await everything_in(bench)


async def test_erased_for_ever_and_still_whole(bench: Rig) -> None:
    await bench.operator(**ON).start()
    await bench.apply("busy")
    busy = await bench.agent("busy-1")
    await busy.step("0")
    refused = await ask(bench, "erase", *about(bench, "busy"))
    assert (refused["exit"], "cancel it first" in refused["error"]) == (75, True)

    await finished(bench, "hello")
    await finished(bench, "other", "kept")
    copy = (await bench.store.meta(JournalId(bench.run("hello")["metadata"]["uid"]))).fields["dataKey/d1"]  # type: ignore[union-attr]  # it is there
    words = about(bench, "hello")
    told = await ask(bench, "erase", *words)
    assert (told["secret"], told["rewrapped"]) == ("hello-run", 2)
    assert copy.startswith("w1:")
    assert list(secret(bench, "everstep-keys-wrapping", SYSTEM)) == ["w2"], "an older copy of the store stays closed"
    assert (await ask(bench, "result", *words))["result"] == "(erased)"
    assert (await ask(bench, "verify", *words))["whole"]
    assert (await ask(bench, "result", *about(bench, "other")))["result"] == "kept"
    gone = await ask(bench, "fork", *words, "--from-step", "0", "--target", "u", "--inputs-digest", "00" * 32)
    assert "was erased" in gone["error"]
    assert "secret" in await ask(bench, "erase", *words), "may be repeated"

    await bench.evict("busy-1")
    second = await bench.agent("busy-2")
    await second.finish(WORD)
    await bench.until(lambda: bench.condition("busy", "Finished").startswith("True"), "others go on under the new key")
    await finished(bench, "later")
    assert (await ask(bench, "result", *about(bench, "later")))["result"] == WORD


async def test_an_erased_run_cannot_go_on(bench: Rig) -> None:
    """A verdict of the operator's own can be reopened by a change of the spec; an erased run ends again without a pod."""
    await bench.operator(**ON).start()
    await bench.apply("hello", restarts={"application": {"max": 0}})
    agent = await bench.agent("hello-1")
    await agent.step("0")
    await agent.exit(1)
    await bench.until(lambda: bench.condition("hello", "Succeeded") == "False/RestartsExhausted", "given up")
    await ask(bench, "erase", *about(bench, "hello"))
    run = dict(bench.run("hello"))
    run["spec"] = {**run["spec"], "agent": {**run["spec"]["agent"], "image": "other:1"}}
    run["metadata"] = {**run["metadata"], "generation": run["metadata"]["generation"] + 1}
    await bench.server.objects.replace("agentruns", run)
    await bench.until(lambda: bench.condition("hello", "Succeeded") == "False/Erased", "it ends as erased")
    assert bench.server.objects.made == ["hello-1"]


async def test_a_rotation_touches_no_record(bench: Rig) -> None:
    await bench.operator(**ON).start()
    await finished(bench, "hello")
    journal = JournalId(bench.run("hello")["metadata"]["uid"])
    before = [stored.record async for stored in bench.store.read(journal)]
    assert await ask(bench, "rotate-key") == {"rewrapped": 1}
    assert [stored.record async for stored in bench.store.read(journal)] == before
    assert list(secret(bench, "everstep-keys-wrapping", SYSTEM)) == ["w2"]
    assert (await ask(bench, "result", *about(bench, "hello")))["result"] == WORD


async def test_a_fork_of_an_encrypted_run_is_encrypted_under_a_key_of_its_own(bench: Rig) -> None:
    """Also where new runs are not, and also when the question is asked twice."""
    await bench.operator(**ON).start()
    await finished(bench, "hello")
    target = "6f0e1f0a-0000-4000-8000-00000000000f"
    more = ["--from-step", "end", "--target", target, "--target-name", "second", "--inputs-digest", "00" * 32]
    first = await ask(bench, "fork", *about(bench, "hello"), *more, encrypt=False)
    assert first == await ask(bench, "fork", *about(bench, "hello"), *more, encrypt=False)
    meta = await bench.store.meta(JournalId(target))
    assert meta is not None
    assert meta.head.seq == first["records"]
    assert meta.fields["dataKey/d1"].startswith("w1:")
    raw = b"".join([stored.record async for stored in bench.store.read(JournalId(target))])
    assert raw.count(b'"sealed":"d1"') == first["records"]
    shown = await ask(bench, "steps", "--run", "second", "--journal", target)
    assert [s["name"] for s in shown["steps"]] == ["work"]


async def test_without_its_keys_nothing_is_guessed(bench: Rig) -> None:
    await bench.operator(**ON).start()
    await finished(bench, "hello")
    await bench.server.objects.delete("secrets", SYSTEM, "everstep-keys-wrapping", {})
    answer = await ask(bench, "result", *about(bench, "hello"))
    assert "everstep-keys-wrapping does not exist" in answer["error"]
    assert (await ask(bench, "verify", *about(bench, "hello")))["whole"], "the proof needs no data key"
    await finished(bench, "later")
    assert list(secret(bench, "everstep-keys-wrapping", SYSTEM)) == ["w2"], "no id ever means two keys"
    assert (await ask(bench, "result", *about(bench, "later")))["result"] == WORD
    answer = await ask(bench, "result", *about(bench, "hello"))
    assert "wrapped under w1, which is not here" in answer["error"]
    erased = await ask(bench, "erase", *about(bench, "later"))
    assert "old keys stay" in erased["problem"], "hello may yet be read, with a backup of w1"
    assert (await ask(bench, "result", *about(bench, "later")))["result"] == "(erased)"


async def test_a_run_whose_key_is_missing_waits_for_it(bench: Rig) -> None:
    operator = bench.operator(**ON)
    await operator.start()
    await bench.apply("hello")
    await (await bench.agent("hello-1")).step("0")
    await operator.kill()
    lost = dict(bench.server.objects.get("secrets", SYSTEM, "everstep-keys-wrapping"))
    await bench.server.objects.delete("secrets", SYSTEM, "everstep-keys-wrapping", {})
    await operator.start()
    await bench.evict("hello-1")
    await bench.until(lambda: "DataKeyMissing" in bench.condition("hello", "Reconciling"), "the run says why it waits")
    assert bench.pod("hello-2") is None
    assert "everstep-keys-wrapping does not exist" in json.dumps(bench.status("hello"))
    meta = {"name": "everstep-keys-wrapping"}
    await bench.server.objects.create("secrets", SYSTEM, {**lost, "metadata": meta})
    second = await bench.until(lambda: bench.pod("hello-2"), "the run goes on", within_s=60)
    assert second
    await (await bench.agent("hello-2")).finish(WORD)
    await bench.until(lambda: bench.condition("hello", "Finished").startswith("True"), "the run is finished")


@pytest.mark.parametrize("lose_secret", [False, True])
@pytest.mark.parametrize(
    "point", ["before_create_secret", "after_create_secret", "before_fence", "after_fence", "before_create_pod"]
)
async def test_the_operator_may_die_anywhere_while_a_run_begins(bench: Rig, point: str, lose_secret: bool) -> None:
    """The key in the pod's hands is the one that the journal keeps, also where the Secret is lost with the operator."""
    operator = bench.operator(**ON)
    await operator.start(EVERSTEP_OPERATOR_FAULTS=f"{point}=kill")
    await bench.apply("hello")
    await operator.ended()
    if lose_secret:
        with contextlib.suppress(ApiError):
            await bench.server.objects.delete("secrets", NAMESPACE, "hello-run", {})
    await operator.start()
    agent = await bench.agent("hello-1")
    await agent.finish(WORD)
    await bench.until(lambda: bench.condition("hello", "Finished").startswith("True"), "the run is finished")
    assert WORD.encode() not in await everything_in(bench)
    assert (await ask(bench, "result", *about(bench, "hello")))["result"] == WORD


async def test_without_the_value_there_is_no_key(bench: Rig) -> None:
    await bench.operator().start()
    await finished(bench, "hello", "in the clear")
    with pytest.raises(ApiError):
        secret(bench, "everstep-keys-wrapping", SYSTEM)
    assert b"in the clear" in await everything_in(bench)
    refused = await ask(bench, "erase", *about(bench, "hello"), encrypt=False)
    assert "is not encrypted" in refused["error"]
