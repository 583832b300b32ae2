"""Another image under a running run, and a run in one signed file, by the commands a person types. E1, C8, C62."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.command import everstep, kubectl_everstep
from tests.e2e.harness import Run, WorldView, wait_for
from tests.kind import faults
from tests.kind.cluster import Cluster

Make = Callable[..., Run]
IMAGE = "everstep/agent"
TICKETS = 60


@pytest.fixture(scope="module")
def images(cluster: Cluster) -> tuple[str, str]:
    """Two more tags of the agent's image: one runs the same code, one makes the scripted agent take another way."""
    for node in cluster.nodes:
        for tag in ("same-code", "other-code"):
            names = [f"docker.io/{IMAGE}:{t}" for t in ("dev", tag)]
            faults.node_exec(cluster, node, ["ctr", "-n", "k8s.io", "images", "tag", "--force", *names])
    return f"{IMAGE}:same-code", f"{IMAGE}:other-code"


def recorded(run: Run) -> int:
    """Steps with an outcome, by the run's status."""
    return int(run.status().get("steps", {}).get("recorded", 0))


def test_repin_replays_first_and_puts_the_old_image_back(
    cluster: Cluster, make_run: Make, world: WorldView, images: tuple[str, str]
) -> None:
    """C8: an image whose code tells another story changes nothing; one that replays goes on, and nothing is repeated."""
    same, other = images
    run = make_run("repin", inputs={"tickets": TICKETS})
    wait_for("some steps", lambda: recorded(run) >= 6, timeout_s=90)

    refused = kubectl_everstep(cluster, "repin", run.name, "--image", other)
    assert refused.returncode == 65, f"{refused.stdout}{refused.stderr}"
    assert "file_ticket" in refused.stderr, refused.stderr
    assert run.get()["spec"]["agent"]["image"] == f"{IMAGE}:dev"
    before = recorded(run)
    wait_for("the old code to go on", lambda: recorded(run) > before, timeout_s=90)

    taken = kubectl_everstep(cluster, "repin", run.name, "--image", same)
    assert taken.returncode == 0, f"{taken.stdout}{taken.stderr}"
    assert "replayed" in taken.stdout
    status = run.wait_finished(timeout_s=180)
    assert status["summary"] == "Succeeded", run.summary()
    requests = world.requests(run.name)
    assert set(requests["mail"].values()) == {1}, f"a mail went out twice: {requests['mail']}"
    assert len(requests["mail"]) == TICKETS
    # Suspending lets the step in flight end; two changes of image may still catch one model call or ticket each.
    repeated = sum(n - 1 for kind in ("model", "ticket") for n in requests[kind].values())
    assert repeated <= 4, requests


def test_a_run_in_one_signed_file(cluster: Cluster, make_run: Make, tmp_path: Path) -> None:
    """Exported through the operator, judged anywhere: whole under the operator's public key, altered where it was altered."""
    run = make_run("export", inputs={"tickets": 2})
    status = run.wait_finished(timeout_s=120)
    file, keys = tmp_path / "export.jsonl", tmp_path / "operator.pem"
    done = kubectl_everstep(cluster, "export", run.name, "-o", str(file))
    assert done.returncode == 0, done.stderr
    told = kubectl_everstep(cluster, "public-key")
    assert told.returncode == 0, told.stderr
    keys.write_text(told.stdout, encoding="utf-8")

    head = status["checkpoint"]
    anchor = ["--anchor", f"{head['seq']}:{head['hash']}"]
    whole = everstep("verify", str(file), "--public-key", str(keys), *anchor)
    assert whole.returncode == 0, f"{whole.stdout}{whole.stderr}"

    lines = file.read_text(encoding="utf-8").splitlines()
    record = json.loads(lines[4])
    changed = record["r"].replace('"attempt":1', '"attempt":2')
    assert changed != record["r"], record
    record["r"] = changed
    lines[4] = json.dumps(record)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    altered = everstep("verify", str(file), "--public-key", str(keys), *anchor)
    assert altered.returncode == 1, f"{altered.stdout}{altered.stderr}"
    assert str(record["n"]) in altered.stdout + altered.stderr
