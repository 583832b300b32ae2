"""C9: canonical bytes and the chain are frozen: across dict orders, hash seeds and Python versions, for ever.

A journal written by any release must verify with every later one. If a test here fails, the code is wrong, not the vectors."""

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.errors import JournalUnreadable
from everstep.ids import InboxId, JournalId, RecordHash, Seq
from everstep.journal.canonical import canonical
from everstep.journal.chain import Chain, derive_run_key
from everstep.journal.inbox import CancelBody, SettleBody, make_entry, read_body
from everstep.journal.records import KINDS, decode, encode
from everstep.journal.store import InboxEntry

HERE = Path(__file__).parent
FILE = HERE / "vectors" / "journal_v1.json"
SOURCE = HERE.parents[1] / "agent_image" / "everstep"
VECTORS = json.loads(FILE.read_text(encoding="utf-8"))
CHAIN = VECTORS["chain"]
EVERY_KIND = [*VECTORS["records"], *VECTORS["later_records"]]
"""The later ones came after the chain of the vectors was frozen."""
JOURNAL = JournalId(CHAIN["journal_id"])
RUN_KEY = bytes.fromhex(CHAIN["run_key_hex"])

RECOMPUTE = """
import hashlib, importlib, json, sys, types
package = types.ModuleType("everstep")  # without what needs more than the standard library
package.__path__ = [sys.argv[1]]
sys.modules["everstep"] = package
canonical = importlib.import_module("everstep.journal.canonical").canonical
chain = importlib.import_module("everstep.journal.chain")
vectors = json.load(open(sys.argv[2], encoding="utf-8"))
keep = lambda pairs: dict(reversed(pairs))
made = [canonical(json.loads(v["json"], object_pairs_hook=keep)).hex() for v in vectors["canonical"]]
assert made == [v["bytes_hex"] for v in vectors["canonical"]], made
names = {"r%d" % n for n in range(50)}
digest = hashlib.sha256(canonical({n: n for n in names})).hexdigest()
c = vectors["chain"]
key = chain.derive_run_key(bytes.fromhex(c["operator_key_hex"]), c["journal_id"])
assert key.hex() == c["run_key_hex"]
for k, links in ((key, c["keyed"]), (None, c["plain"])):
    one = chain.Chain(c["journal_id"], k)
    at = [one.genesis()]
    for r in vectors["records"]:
        at.append(one.link(at[-1], r["bytes"].encode()))
    assert at == links, at
print(digest)
"""


@functools.cache
def interpreters() -> dict[str, str]:
    """Every supported Python on this host by version: on PATH or made by pyenv."""
    found: dict[str, str] = {}
    for version in ("3.11", "3.12", "3.13"):
        candidates = [
            shutil.which(f"python{version}"),
            *map(str, Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python3")),
        ]
        if sys.version_info[:2] == tuple(map(int, version.split("."))):
            candidates.insert(0, sys.executable)
        for candidate in filter(None, candidates):
            ask = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
            done = subprocess.run(ask, capture_output=True, text=True, check=False)
            if done.returncode == 0 and done.stdout.strip() == version:
                found[version] = candidate
                break
    return found


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_every_python_and_hash_seed_makes_the_same_bytes(seed: str) -> None:
    """C9. The running Python is always among them."""
    digests = set()
    for version, program in interpreters().items():
        done = subprocess.run(
            [program, "-c", RECOMPUTE, str(SOURCE), str(FILE)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"Python {version}, seed {seed}:\n{done.stderr}"
        digests.add(done.stdout)
    assert len(digests) == 1
    assert interpreters()


@pytest.mark.parametrize("vector", VECTORS["canonical"], ids=lambda v: v["name"])
def test_canonical_bytes(vector: dict[str, str]) -> None:
    assert canonical(json.loads(vector["json"])).hex() == vector["bytes_hex"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), [{"a": float("nan")}], "\ud800"])
def test_what_has_no_canonical_bytes_is_refused(bad: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - three kinds of it
        canonical(bad)


@pytest.mark.parametrize("bad", [object(), {1, 2}, b"bytes", {("a",): 1}])
def test_what_is_not_json_is_refused(bad: object) -> None:
    with pytest.raises(TypeError):
        canonical(bad)


@pytest.mark.parametrize("vector", EVERY_KIND, ids=lambda v: v["kind"])
def test_every_kind_reads_and_writes_the_same_bytes(vector: dict[str, str]) -> None:
    raw = vector["bytes"].encode()
    record = decode(raw, Seq(1))
    assert record.kind == vector["kind"]
    assert encode(record) == raw


def test_the_vectors_hold_every_kind() -> None:
    assert set(KINDS) == {v["kind"] for v in EVERY_KIND}


@pytest.mark.parametrize(("key", "links"), [(RUN_KEY, CHAIN["keyed"]), (None, CHAIN["plain"])], ids=["keyed", "plain"])
def test_chain(key: bytes | None, links: list[str]) -> None:
    chain = Chain(JOURNAL, key)
    at: list[str] = [chain.genesis()]
    for vector in VECTORS["records"]:
        at.append(chain.link(RecordHash(at[-1]), vector["bytes"].encode()))
    assert at == links


def test_run_key_differs_per_run() -> None:
    operator_key = bytes.fromhex(CHAIN["operator_key_hex"])
    assert derive_run_key(operator_key, JOURNAL) == RUN_KEY
    assert derive_run_key(operator_key, JournalId(JOURNAL + "0")) != RUN_KEY


def test_inbox_mac_binds_journal_id_and_body() -> None:
    mac = CHAIN["inbox_mac"]
    chain = Chain(JOURNAL, RUN_KEY)
    assert chain.inbox_mac(mac["entry_id"], mac["body"].encode()) == mac["keyed"]
    entry = make_entry(chain, InboxId("cancel-1"), CancelBody(by="jane"))
    assert read_body(chain, entry) == CancelBody(by="jane")
    settled = make_entry(
        chain, InboxId("settle-1"), SettleBody(key="4", input="e", decision="done", value={"id": None})
    )
    assert read_body(chain, settled) == SettleBody(key="4", input="e", decision="done", value={"id": None})
    for forged in (
        InboxEntry(InboxId("cancel-2"), entry.body, entry.mac),
        InboxEntry(entry.id, entry.body.replace(b"jane", b"joan"), entry.mac),
        InboxEntry(entry.id, entry.body, "0" * 64),
        make_entry(Chain(JournalId("other"), RUN_KEY), entry.id, CancelBody(by="jane")),
        make_entry(Chain(JOURNAL, None), entry.id, CancelBody(by="jane")),
    ):
        assert read_body(chain, forged) is None
    genuine_but_unknown = InboxEntry(InboxId("x"), b'{"type":"later"}', chain.inbox_mac("x", b'{"type":"later"}'))
    assert read_body(chain, genuine_but_unknown) is None


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b'{"v":2,"kind":"fired","seq":3,"attempt":1,"time":0}', "schema 2"),
        (b'{"v":1,"kind":"later","seq":3,"attempt":1,"time":0}', "kind 'later'"),
        (b'{"v":1,"kind":"fired","seq":3,"attempt":1,"time":0,"extra":1}', "kind 'fired'"),
        (b"[]", "kind None"),
        (b"\xff\x00", "kind None"),
        (b'cos\nsystem\n(S"true"\ntR.', "kind None"),
    ],
)
def test_unknown_kinds_newer_schemas_and_planted_payloads_are_refused(raw: bytes, says: str) -> None:
    """C48: what is planted stays data."""
    with pytest.raises(JournalUnreadable, match="record 3 cannot be read") as refused:
        decode(raw, Seq(3))
    assert says in str(refused.value)
    assert refused.value.seq == 3
