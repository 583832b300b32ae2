"""The hand of kubelet and agent: sets a pod's status, and writes to the journal what an attempt would, with the run's own key."""

import base64
import json
from typing import Any

from msgspec import structs

from everstep import contract
from everstep.clock import SystemClock
from everstep.errors import Fenced
from everstep.ids import Attempt, JournalId, Owner, Seq
from everstep.journal.chain import Chain
from everstep.journal.progress import Progress
from everstep.journal.records import Finished, Intent, Park, Record, Result, RunStarted, Waited, encode
from everstep.journal.sealing import Sealer
from everstep.journal.store import AppendAnswer, ClaimAnswer, Head, Sealed, Store
from tests.component.mock_cluster.api_server import ApiServer
from tests.component.mock_cluster.objects import Json, now_rfc3339

CLOCK = SystemClock()


class Agent:
    """One attempt's process, in one pod."""

    def __init__(self, server: ApiServer, store: Store, pod: Json) -> None:
        self.server, self.store, self.pod = server, store, pod
        container = next(c for c in pod["spec"]["containers"] if c["name"] == contract.AGENT_CONTAINER)
        env = {e["name"]: e.get("value", "") for e in container["env"]}
        self.journal = JournalId(env[contract.ENV_JOURNAL_ID])
        self.attempt = Attempt(int(env[contract.ENV_ATTEMPT]))
        self.predecessor = env.get(contract.ENV_PREDECESSOR, "")
        self.owner = Owner(pod["metadata"]["uid"] + ":nonce")
        self.head: Head | None = None
        self.chain: Chain | None = None

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    async def start(self, node: str = "worker") -> "Agent":
        """The container runs, the SDK claims and begins the journal where it is empty. Raises Fenced."""
        await self.set_status(
            {
                "phase": "Running",
                "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
                "containerStatuses": [
                    {
                        "name": "agent",
                        "image": "agent:1",
                        "imageID": "docker.io/agent@sha256:" + "ab" * 32,
                        "containerID": "containerd://1",
                        "state": {"running": {"startedAt": now_rfc3339()}},
                    }
                ],
            },
            node,
        )
        ns, run = self.pod["metadata"]["namespace"], self.pod["metadata"]["labels"]["everstep.dev/run"]
        secret = self.server.objects.get("secrets", ns, f"{run}-run")["data"]
        key = bytes.fromhex(base64.b64decode(secret[contract.FILE_RUN_KEY]).decode())
        keys = json.loads(base64.b64decode(secret.get(contract.FILE_DATA_KEYS, "e30=")))
        data_keys = {name: bytes.fromhex(text) for name, text in keys.items()}
        self.chain = Chain(
            self.journal, key, Sealer(self.journal, data_keys, CLOCK.random_bytes) if data_keys else None
        )
        reply = await self.store.claim(self.journal, self.attempt, self.owner)
        if reply.answer is not ClaimAnswer.OK:
            raise Fenced(f"claim: {reply.answer}", reply.attempt)
        self.head = reply.head
        assert self.head is not None
        if self.head.seq == 0:
            await self.write(
                RunStarted(seq=1, attempt=self.attempt, time=now_ms(), run=run, python="3.12", sdk="0.1.0")
            )
        return self

    async def step(self, key: str, name: str = "work") -> None:
        """One step: intent, then result."""
        common: Any = {"key": key, "name": name, "attempt": self.attempt, "time": now_ms(), "seq": 0}
        await self.write(Intent(**common, effect="idempotent", input="00", idem=f"idem-{key}"))
        await self.write(Result(**common, value=int(key)))

    async def park_uncertain(self, key: str, name: str = "send_mail", input: str = "ab" * 32) -> None:
        """Park for a person's word."""
        wait = Waited(kind="uncertain", key=key, name=name, input=input, arguments={"to": "x"}, since=now_ms())
        await self.write(Park(seq=0, attempt=self.attempt, time=now_ms(), waits=[wait]))

    async def park_timer(self, due_ms: int) -> None:
        """Park until a time."""
        wait = Waited(kind="timer", key="9", since=now_ms(), due=due_ms)
        await self.write(Park(seq=0, attempt=self.attempt, time=now_ms(), waits=[wait], wake=due_ms))

    async def finish(self, value: object = "done") -> None:
        """The last record, and exit 0."""
        await self.write(Finished(seq=0, attempt=self.attempt, time=now_ms(), outcome="succeeded", value=value))
        await self.exit(0)

    async def write(self, record: Record) -> None:
        """Append one record. Raises Fenced as the SDK would."""
        assert self.head is not None
        assert self.chain is not None
        record = structs.replace(record, seq=self.head.seq + 1)
        raw = encode(record) if self.chain.sealer is None else self.chain.sealer.seal(encode(record))
        sealed = Sealed(Seq(record.seq), raw, self.head.hash, self.chain.link(self.head.hash, raw))
        told = Progress(attempt=self.attempt, state="running", recorded=record.seq // 2, step_key=record.key)
        reply = await self.store.append(
            self.journal, self.attempt, self.owner, self.head, [sealed], progress=told.to_bytes()
        )
        if reply.answer in (AppendAnswer.FENCED, AppendAnswer.TAKEN):
            raise Fenced(f"append: {reply.answer}", reply.attempt)
        assert reply.answer is AppendAnswer.OK, reply
        self.head = Head(sealed.seq, sealed.hash)

    async def exit(self, code: int, *, reason: str = "", message: str = "", pod_reason: str = "") -> None:
        """The kubelet reports the container's end."""
        state = {
            "terminated": {
                "exitCode": code,
                "reason": reason or ("Completed" if code == 0 else "Error"),
                "message": message,
                "startedAt": now_rfc3339(),
                "finishedAt": now_rfc3339(),
            }
        }
        status: Json = {
            "phase": "Succeeded" if code == 0 else "Failed",
            "containerStatuses": [
                {
                    "name": "agent",
                    "state": state,
                    "containerID": "containerd://1",
                    "imageID": "docker.io/agent@sha256:" + "ab" * 32,
                }
            ],
        }
        if pod_reason:
            status["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": pod_reason}]
        await self.set_status(status)

    async def set_status(self, status: Json, node: str = "") -> None:
        pod = json.loads(json.dumps(self.server.objects.get("pods", self.pod["metadata"]["namespace"], self.name)))
        if pod["metadata"]["uid"] != self.pod["metadata"]["uid"]:
            raise AssertionError(f"{self.name} is another pod now")
        pod["status"] = status
        if node:
            pod["spec"]["nodeName"] = node
        await self.server.objects.replace("pods", pod)


def now_ms() -> int:
    return CLOCK.now_epoch_ms()
