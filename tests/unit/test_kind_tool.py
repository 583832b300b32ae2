"""The pure parts of the cluster tool: configurations, hash keys, choices, plans, image layouts."""

import hashlib
import io
import json
import tarfile
import threading
from pathlib import Path

import pytest
from rich.console import Console
from tests.kind import (
    cluster,
    engine,
    gomodules,
    images,
    load,
    node_files,
    node_image,
    route,
    runtime_wrapper,
    wheelhouse,
)
from tests.kind.cache import Cache, digest, folder_in_place, tree_digest
from tests.kind.clients import kubectl_fits
from tests.kind.debian import pick_mirror
from tests.kind.errors import CommandFailed, KindToolError
from tests.kind.layout import full_name, write_layout
from tests.kind.plan import Step, run_plan
from tests.kind.progress import Reporter
from tests.kind.route import Route
from tests.kind.shell import pipe, run, terminate_children


def quiet() -> Reporter:
    return Reporter(Console(file=io.StringIO()))


# --- capabilities


def test_the_runtime_drops_exactly_what_the_host_lacks() -> None:
    full, lacking = "CapBnd:\t000001ffffffffff\n", "CapInh:\t0\nCapBnd:\t000001fffeffffff\n"
    assert runtime_wrapper.missing_capabilities(full) == frozenset()
    assert runtime_wrapper.missing_capabilities(lacking) == {"CAP_SYS_RESOURCE"}


def test_capabilities_go_from_a_spec_and_from_a_process_document() -> None:
    missing = frozenset({"CAP_SYS_RESOURCE"})
    spec = {"process": {"args": ["x"], "capabilities": {"bounding": ["CAP_KILL", "CAP_SYS_RESOURCE"], "ambient": None}}}
    process = {"args": ["x"], "capabilities": {"effective": ["CAP_SYS_RESOURCE"]}}
    assert runtime_wrapper.strip(spec, missing)
    assert runtime_wrapper.strip(process, missing)
    assert spec["process"] == {"args": ["x"], "capabilities": {"bounding": ["CAP_KILL"], "ambient": []}}
    assert process["capabilities"] == {"effective": []}
    assert not runtime_wrapper.strip(spec, missing), "a second call finds nothing to change"
    assert not runtime_wrapper.strip({"process": {}}, missing)


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        (["--log", "l", "create", "--bundle", "/b", "id"], ["/b/config.json"]),
        (["run", "-b", "/b", "id"], ["/b/config.json"]),
        (["exec", "--process=/p.json", "id"], ["/p.json"]),
        (["exec", "--process", "/p.json", "id"], ["/p.json"]),
        (["delete", "--force", "id"], []),
        (["create", "--bundle"], []),
    ],
)
def test_the_runtime_finds_the_documents_of_a_call(arguments: list[str], files: list[str]) -> None:
    assert runtime_wrapper.spec_files(arguments) == files


# --- configuration


def test_kind_config_has_one_control_plane_two_workers_and_notices_dead_nodes_early() -> None:
    document = json.loads(cluster.kind_config())
    assert [node["role"] for node in document["nodes"]] == ["control-plane", "worker", "worker"]
    (patch,) = document["kubeadmConfigPatches"]
    assert "node-monitor-grace-period: 16s" in patch
    assert "node-monitor-period: 2s" in patch


@pytest.mark.parametrize("name", ["", "Big", "-x", "a_b", "x" * 50, "a b"])
def test_names_that_kind_would_refuse_are_refused_first(name: str) -> None:
    with pytest.raises(KindToolError, match="cluster name"):
        cluster.check_name(name)


def test_go_mod_replaces_each_staging_module_by_its_published_version() -> None:
    upstream = (
        "replace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n\tk8s.io/kubectl => ./staging/src/k8s.io/kubectl\n"
        "\tx.y/z => ../z\n)\n"
    )
    text = gomodules.kubernetes_go_mod(upstream, "1.34.4")
    assert "require k8s.io/kubernetes v1.34.4" in text
    assert "\tk8s.io/api => k8s.io/api v0.34.4\n\tk8s.io/kubectl => k8s.io/kubectl v0.34.4\n)" in text
    assert "x.y/z" not in text


def test_kubernetes_programs_know_their_version() -> None:
    flags = gomodules.kubernetes_linker_flags("1.34.4")
    assert "-X k8s.io/component-base/version.gitVersion=v1.34.4" in flags
    assert "-X k8s.io/client-go/pkg/version.gitMinor=34" in flags


def test_containerd_is_configured_for_a_host_without_every_capability() -> None:
    upstream = (
        'version = 2\n[proxy_plugins]\n# fuse-overlayfs is used for rootless\n[proxy_plugins."fuse-overlayfs"]\n'
        '  type = "snapshot"\n'
        '  address = "/run/containerd-fuse-overlayfs.sock"\n  sandbox_image = "old"\n  restrict_oom_score_adj = false\n'
    )
    assert node_files.containerd_config(upstream, "k/pause:1") == (
        'version = 2\n  sandbox_image = "k/pause:1"\n  restrict_oom_score_adj = true\n'
    )
    unit = "[Service]\nLimitCORE=infinity\nOOMScoreAdjust=-999\nTasksMax=infinity\n"
    assert node_files.containerd_unit(unit) == "[Service]\nTasksMax=infinity\n"
    spec = json.loads(node_files.base_runtime_spec('{"process": {"rlimits": [1], "cwd": "/"}}'))
    assert spec["process"] == {"cwd": "/"}
    assert spec["hooks"]["createContainer"] == [{"path": "/kind/bin/mount-product-files.sh"}]


def test_storage_manifest_is_read_from_kinds_source() -> None:
    source = (
        'package nodeimage\n\nconst storageProvisionerImage = "p:1"\nconst storageHelperImage = "h:1"\n\n'
        "const defaultStorageManifest = `\napiVersion: v1\nimage: ` + storageProvisionerImage + `\n"
        "helper: ` + storageHelperImage + `\n`\n"
    )
    storage = node_files.storage_of_kind(source)
    assert storage.manifest == "apiVersion: v1\nimage: p:1\nhelper: h:1\n"
    assert (storage.provisioner_image, storage.helper_image) == ("p:1", "h:1")
    with pytest.raises(KindToolError, match="another form"):
        node_files.storage_of_kind("package nodeimage\n")


def test_component_names_are_what_kubeadm_lists() -> None:
    listing = "reg.example/kube-proxy:v1\nreg.example/coredns/coredns:v2\nreg.example/etcd:3.6-0\n"
    assert node_image.component_names(listing) == {
        "kube-proxy": "reg.example/kube-proxy:v1",
        "coredns": "reg.example/coredns/coredns:v2",
        "etcd": "reg.example/etcd:3.6-0",
    }


# --- choices


def test_what_is_in_the_engine_is_used_without_asking_a_registry() -> None:
    def never() -> str | None:
        raise AssertionError("asked a registry")

    assert route.decide(None, has_built=True, has_public=False, can_pull=never).route is Route.BUILT
    assert route.decide(None, has_built=True, has_public=True, can_pull=never).route is Route.PUBLIC
    assert route.decide("built", has_built=False, has_public=True, can_pull=never).route is Route.BUILT


def test_the_registry_decides_where_nothing_is_there_and_the_reason_is_told() -> None:
    assert route.decide(None, has_built=False, has_public=False, can_pull=lambda: None).route is Route.PUBLIC
    choice = route.decide(None, has_built=False, has_public=False, can_pull=lambda: "no such host")
    assert choice.route is Route.BUILT
    assert "no such host" in choice.why
    with pytest.raises(KindToolError, match="expected public or built"):
        route.decide("cloud", has_built=False, has_public=False, can_pull=lambda: None)


@pytest.mark.parametrize(
    ("version", "fits"),
    [
        ("v1.34.5", True),
        ("v1.33.0", True),
        ("v1.35.1+k3s", True),
        ("v1.32.4-dispatcher", False),
        ("", False),
        ("v2.34.0", False),
    ],
)
def test_kubectl_may_be_one_minor_apart(version: str, fits: bool) -> None:
    assert kubectl_fits(version, "1.34.4") is fits


def test_the_mirror_is_the_main_archive_of_the_suite() -> None:
    targets = (
        "http://m.example/security/|bookworm-security|main|Debian\nhttp://other.example/|stable|main|Other\n"
        "http://m.example/new/|trixie|main|Debian\nhttp://m.example/debian/|bookworm|main|Debian\n"
    )
    assert pick_mirror(targets, "bookworm") == "http://m.example/debian"
    assert pick_mirror("http://m.example/new/|trixie|main|Debian\n", "bookworm") == "http://m.example/new"
    assert pick_mirror("http://other.example/|stable|main|Other\n", "bookworm") is None


def test_subnets_in_use_are_not_taken() -> None:
    assert engine.free_subnets([], 2) == ["172.30.0.0/16", "172.31.0.0/16"]
    assert engine.free_subnets(["172.30.5.0/24"], 1) == ["172.31.0.0/16"]
    with pytest.raises(KindToolError, match="no free private subnet"):
        engine.free_subnets(["172.16.0.0/12"], 1)


def test_wheels_are_chosen_for_the_images_python_and_not_for_this_one() -> None:
    environment = wheelhouse.marker_environment("3.11.2", "x86_64")
    assert (environment["python_version"], environment["python_full_version"]) == ("3.11", "3.11.2")
    assert "manylinux_2_17_x86_64" in wheelhouse.platform_tags("x86_64")
    project = '[project]\ndependencies = ["a>=1"]\n[project.optional-dependencies]\nx = ["b"]\ny = ["c"]\n'
    assert wheelhouse.requirements(project, ("x",)) == ["a>=1", "b"]
    with pytest.raises(KeyError):
        wheelhouse.requirements(project, ("z",))


# --- hash keys and the cache


def test_digest_keeps_borders_between_parts() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("ab", "c") == digest(b"ab", "c")


def test_tree_digest_sees_names_contents_and_modes_and_not_pythons_caches(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    file = tmp_path / "a" / "x.py"
    file.write_text("1")
    seen = {tree_digest([tmp_path / "a"], tmp_path)}
    (tmp_path / "a" / "__pycache__").mkdir()
    (tmp_path / "a" / "__pycache__" / "x.pyc").write_text("cache")
    assert tree_digest([tmp_path / "a"], tmp_path) in seen
    file.write_text("2")
    seen.add(tree_digest([tmp_path / "a"], tmp_path))
    file.chmod(0o755)
    seen.add(tree_digest([tmp_path / "a"], tmp_path))
    file.rename(tmp_path / "a" / "y.py")
    seen.add(tree_digest([tmp_path / "a"], tmp_path))
    assert len(seen) == 4


def test_image_inputs_are_the_base_the_dependencies_and_the_sources(tmp_path: Path) -> None:
    (tmp_path / "operator").mkdir()
    (tmp_path / "operator" / "x.py").write_text("1")
    first = images.input_key("sha256:base", "deps", tmp_path)
    assert images.input_key("sha256:base", "deps", tmp_path) == first
    assert images.input_key("sha256:other", "deps", tmp_path) != first
    assert images.input_key("sha256:base", "other", tmp_path) != first
    (tmp_path / "operator" / "x.py").write_text("2")
    assert images.input_key("sha256:base", "deps", tmp_path) != first


def test_an_output_counts_only_with_its_stamp_and_a_failed_folder_leaves_the_old_one(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    output = tmp_path / "out"
    assert not cache.fresh("out", "k1", output)
    with folder_in_place(output) as partial:
        (partial / "f").write_text("whole")
    assert not cache.fresh("out", "k1", output), "made, but not marked: the process may have died in between"
    cache.mark("out", "k1")
    assert cache.fresh("out", "k1", output)
    assert not cache.fresh("out", "k2", output)

    def fail() -> None:
        with folder_in_place(output) as partial:
            (partial / "f").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (output / "f").read_text() == "whole"


# --- plans


def test_a_plan_runs_each_step_once_after_its_needs_and_skips_what_is_there() -> None:
    order: list[str] = []
    steps = [
        Step("c", lambda: order.append("c"), needs=("a", "b")),
        Step("a", lambda: order.append("a")),
        Step("b", lambda: order.append("b"), needs=("a",)),
        Step("there", lambda: order.append("there"), fresh=lambda: True),
    ]
    run_plan(steps, quiet())
    assert order == ["a", "b", "c"]


def test_steps_without_needs_run_side_by_side() -> None:
    meet = threading.Barrier(2, timeout=5)

    def both() -> None:
        meet.wait()

    run_plan([Step("a", both), Step("b", both)], quiet())


def test_after_a_failure_nothing_new_starts_and_its_reason_comes_out() -> None:
    order: list[str] = []

    def fail() -> None:
        raise KindToolError("no such mirror")

    with pytest.raises(KindToolError, match="no such mirror"):
        run_plan([Step("a", fail), Step("b", lambda: order.append("b"), needs=("a",))], quiet())
    assert order == []


def test_a_plan_that_cannot_end_is_refused() -> None:
    with pytest.raises(ValueError, match="need each other"):
        run_plan([Step("a", lambda: None, needs=("b",)), Step("b", lambda: None, needs=("a",))], quiet())
    with pytest.raises(ValueError, match="no step makes"):
        run_plan([Step("a", lambda: None, needs=("x",))], quiet())


def test_each_step_is_printed_with_its_seconds_and_a_failed_one_as_failed() -> None:
    said = io.StringIO()
    reporter = Reporter(Console(file=said))
    with reporter.step("good"):
        pass
    with pytest.raises(RuntimeError), reporter.step("bad"):
        raise RuntimeError
    assert "done good: 0.0 s" in said.getvalue()
    assert "FAILED bad: 0.0 s" in said.getvalue()


def test_a_program_that_fails_or_hangs_says_what_and_how(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=r"exit code 3:\nbroken") as failed:
        run(["sh", "-c", "echo broken >&2; exit 3"])
    assert failed.value.code == 3
    with pytest.raises(CommandFailed, match=r"did not end within 0\.2 s"):
        run(["sleep", "5"], timeout_s=0.2)
    with pytest.raises(CommandFailed, match="whole output"):
        run(["sh", "-c", "echo broken; exit 1"], log=tmp_path / "log")
    with pytest.raises(KindToolError, match="no-such-program not found"):
        run(["no-such-program"])


def test_a_pipe_tells_which_side_failed() -> None:
    assert pipe(["printf", "a\\nb\\n"], ["wc", "-l"], timeout_s=5).strip() == "2"
    with pytest.raises(CommandFailed, match="left side"):
        pipe(["sh", "-c", "echo left side >&2; exit 1"], ["cat"], timeout_s=5)
    with pytest.raises(CommandFailed, match="right side"):
        pipe(["yes"], ["sh", "-c", "echo right side >&2; exit 1"], timeout_s=5)
    with pytest.raises(CommandFailed, match="did not end"):
        pipe(["sleep", "5"], ["cat"], timeout_s=0.2)


def test_programs_end_with_the_plan_that_is_told_to_end() -> None:
    timer = threading.Timer(0.3, terminate_children)
    timer.start()
    with pytest.raises(CommandFailed, match="exit code -15"):
        run(["sleep", "30"], timeout_s=20)


# --- images


def test_tags_are_compared_as_the_engine_writes_them() -> None:
    listing = {
        "images": [
            {"id": "sha256:1", "repoTags": ["reg.example/everstep/agent:dev"]},
            {"id": "sha256:2", "repoTags": ["reg.example/library/redis:8"]},
        ]
    }
    assert load.images_in_node(json.dumps(listing)) == {"everstep/agent:dev": "sha256:1", "redis:8": "sha256:2"}
    assert load.images_in_node('{"images": null}') == {}
    assert full_name("reg.example:5000/a/b:1") == "reg.example:5000/a/b:1"
    assert full_name("everstep/agent:dev").endswith("/everstep/agent:dev")
    assert full_name("redis:8").endswith("/library/redis:8")


def saved_archive(path: Path) -> tuple[str, list[str]]:
    """An archive as `docker save` writes it: two layers, the second a link to the place where another image has it."""
    layers = [b"first layer", b"second layer"]
    diffs = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    config = json.dumps({"rootfs": {"diff_ids": diffs}}).encode()
    config_name = hashlib.sha256(config).hexdigest()
    manifest = [
        {"Config": f"{config_name}.json", "RepoTags": ["everstep/x:dev"], "Layers": ["l1/layer.tar", "l2/layer.tar"]}
    ]
    files = {"l1/layer.tar": layers[0], "other/layer.tar": layers[1], f"{config_name}.json": config,
             "manifest.json": json.dumps(manifest).encode()}  # fmt: skip
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("l2/layer.tar")
        link.type, link.linkname = tarfile.SYMTYPE, "../other/layer.tar"
        archive.addfile(link)
    return f"sha256:{config_name}", diffs


def test_a_node_gets_the_layers_it_lacks_and_everything_else(tmp_path: Path) -> None:
    config, diffs = saved_archive(tmp_path / "saved.tar")
    size = write_layout(tmp_path / "saved.tar", tmp_path / "out.tar", held={diffs[0]})
    assert size == len(b"second layer")
    with tarfile.open(tmp_path / "out.tar") as out:
        blobs = {}
        for name in out.getnames():
            file = out.extractfile(name)
            assert file is not None
            blobs[name] = file.read()
    (entry,) = json.loads(blobs["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"].endswith("/everstep/x:dev")
    manifest = json.loads(blobs["blobs/" + entry["digest"].replace(":", "/")])
    assert manifest["config"]["digest"] == config
    assert [layer["digest"] for layer in manifest["layers"]] == diffs
    assert blobs["blobs/" + diffs[1].replace(":", "/")] == b"second layer"
    assert "blobs/" + diffs[0].replace(":", "/") not in blobs
    for name, data in blobs.items():
        if name.startswith("blobs/sha256/"):
            assert hashlib.sha256(data).hexdigest() == name.removeprefix("blobs/sha256/")
