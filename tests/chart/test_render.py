"""What the charts render: equal each time, restricted, drainable, with the Redis that the journal's promises need."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.chart.rendering import (
    CHART,
    CRDS_CHART,
    NAMESPACE,
    OWN_REDIS,
    RELEASE,
    Object,
    containers,
    helm,
    objects,
    only,
    pod_specs,
    template,
)

WATCHED: Mapping[str, Any] = {"watchNamespaces": ["team-a", "team-b"]}
EVERYTHING: Mapping[str, Any] = {
    "watchNamespaces": ["team-a"],
    "imagePullSecrets": [{"name": "pull"}],
    "metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "serviceAccount": {"annotations": {"a": "b"}},
    "operator": {
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "podLabels": {"team": "x"},
        "podAnnotations": {"note": "y"},
        "nodeSelector": {"disk": "ssd"},
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
    },
    "redis": {
        "podLabels": {"team": "x"},
        "podAnnotations": {"note": "y"},
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"disk": "ssd"},
        "priorityClassName": "high",
        "persistence": {"storageClass": "fast", "size": "20Gi", "annotations": {"backup": "yes"}},
    },
}
VARIANTS = {"default": {}, "watched": WATCHED, "own-redis": OWN_REDIS, "everything": EVERYTHING}

CLUSTER_SCOPED = {
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}

variants = pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)


@pytest.mark.parametrize("chart", [CHART, CRDS_CHART], ids=lambda chart: str(chart.name))
def test_lint(chart: Any) -> None:
    """helm finds no fault, warnings included."""
    helm("lint", "--strict", chart)


@variants
def test_rendered_twice_byte_equal(values: Mapping[str, Any]) -> None:
    """Tools that render at each sync see no difference: nothing random, no clock, no look into the cluster."""
    assert template(values) == template(values)


UNEQUAL = {
    *(
        "lookup",
        "now",
        "date",
        "htpasswd",
        "bcrypt",
        "derivePassword",
        "uuidv4",
        "genPrivateKey",
        "genCA",
        "genCAWithKey",
    ),
    *(
        "randInt",
        "randBytes",
        "randAlpha",
        "randAlphaNum",
        "randAscii",
        "randNumeric",
        "genSelfSignedCert",
        "genSignedCert",
    ),
}


def test_no_template_asks_the_cluster_the_clock_or_chance() -> None:
    """A rendering can be equal by luck; the functions that could make it unequal are not there at all."""
    for path in CHART.rglob("templates/*"):
        code = re.sub(r"\{\{-? *+/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        words = {
            word
            for action in re.findall(r"\{\{(.*?)\}\}", code, re.DOTALL)
            for word in re.findall(r"[A-Za-z0-9]+", action)
        }
        assert not words & UNEQUAL, path


@variants
def test_every_pod_passes_pod_security_restricted(values: Mapping[str, Any]) -> None:
    """E16 for our own pods: the fields that the level `restricted` demands, and a read-only root file system."""
    for name, pod in pod_specs(objects(values)):
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["runAsUser"] > 0, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys(), name
        allowed = {"configMap", "secret", "persistentVolumeClaim", "projected", "downwardAPI", "csi", "name"}
        assert all(volume.keys() <= allowed for volume in pod.get("volumes", [])), name
        for container in containers(pod):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in security
            assert all("hostPort" not in port for port in container.get("ports", []))


@variants
def test_pods_can_be_drained(values: Mapping[str, Any]) -> None:
    """E1: `kubectl drain` refuses a pod with an emptyDir unless told to delete its data; ours have none."""
    for name, pod in pod_specs(objects(values)):
        assert not [v for v in pod.get("volumes", []) if "emptyDir" in v], name
    assert not [o for o in objects(values) if o["kind"] == "PodDisruptionBudget"]


@variants
def test_every_container_has_resources_and_a_fixed_image(values: Mapping[str, Any]) -> None:
    """Requests and a memory limit; a tag that is not `latest`, or a digest."""
    for name, pod in pod_specs(objects(values)):
        for container in containers(pod):
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}, name
            assert "memory" in container["resources"]["limits"], name
            tag = container["image"].rpartition(":")[2]
            assert tag != "latest", container["image"]
            assert "/" not in tag, f"{container['image']} has no tag"


def test_a_digest_wins_over_the_tag() -> None:
    """As `repository@sha256:…`, without the tag."""
    digest = "sha256:" + "a" * 64
    found = objects({"image": {"digest": digest, "tag": "x"}, "redis": {"image": {"digest": digest}}})
    assert [c["image"] for _, pod in pod_specs(found) for c in containers(pod)] == [
        f"everstep/operator@{digest}",
        f"redis@{digest}",
    ]


@variants
def test_everything_is_named_and_labelled(values: Mapping[str, Any]) -> None:
    """Namespaced objects say their namespace, so that `helm template | kubectl apply` puts them where helm would."""
    for item in objects(values):
        meta = item["metadata"]
        assert meta["labels"]["app.kubernetes.io/managed-by"] == "Helm", meta
        assert ("namespace" in meta) != (item["kind"] in CLUSTER_SCOPED), (item["kind"], meta["name"])
        watched = values.get("watchNamespaces", [])
        assert meta.get("namespace", NAMESPACE) in [NAMESPACE, *watched]


def test_one_operator_and_never_two_during_an_update() -> None:
    """Recreate with one replica."""
    spec = only(objects(), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_operator_probes_ask_the_process_alone() -> None:
    """Liveness waits a minute, the start three; an outage of Redis or of the API server must restart nothing."""
    (container,) = only(objects(), "Deployment")["spec"]["template"]["spec"]["containers"]
    live, ready = container["livenessProbe"], container["readinessProbe"]
    assert live["httpGet"] == {"path": "/healthz", "port": "health"}
    assert ready["httpGet"] == {"path": "/readyz", "port": "health"}
    assert live["periodSeconds"] * live["failureThreshold"] >= 60
    start = container["startupProbe"]
    assert start["httpGet"] == live["httpGet"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 180


def redis(found: list[Object]) -> Object:
    (container,) = only(found, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_redis_keeps_what_it_acknowledged() -> None:
    """E27, E28, C51: synced at each write, never evicting, on a volume that nothing removes."""
    found = objects({"redis": {"maxMemory": "700mb"}})
    lines = only(found, "ConfigMap")["data"]["redis.conf"].splitlines()
    for line in ("appendonly yes", "appendfsync always", "maxmemory-policy noeviction", "maxmemory 700mb", "dir /data"):
        assert line in lines
    stateful = only(found, "StatefulSet")["spec"]
    assert stateful["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert stateful["volumeClaimTemplates"][0]["metadata"]["name"] == "data"
    assert {"name": "data", "mountPath": "/data"} in redis(found)["volumeMounts"]
    assert redis(found)["command"] == ["redis-server", "/etc/redis/redis.conf"]


def test_redis_probes_do_not_kill_a_server_that_loads() -> None:
    """redis-cli exits 0 on LOADING unless told -e: alive, not ready."""
    container = redis(objects())
    probe = ["redis-cli", "--no-auth-warning", "--user", "probe", "--pass", "none"]
    assert container["livenessProbe"]["exec"]["command"] == [*probe, "ping"]
    assert container["readinessProbe"]["exec"]["command"] == [*probe, "-e", "ping"]
    assert container["livenessProbe"]["periodSeconds"] * container["livenessProbe"]["failureThreshold"] >= 120
    assert only(objects(), "StatefulSet")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 60


def test_a_changed_redis_configuration_restarts_redis() -> None:
    """redis.conf is read at start only, so its hash is part of the pod."""

    def annotation(values: Mapping[str, Any]) -> str:
        found = only(objects(values), "StatefulSet")["spec"]["template"]["metadata"]["annotations"]
        return str(found["everstep.dev/redis-conf"])

    assert annotation({}) == annotation({"operator": {"logLevel": "DEBUG"}})
    assert annotation({}) != annotation({"redis": {"maxMemory": "1gb"}})


def test_own_redis_replaces_the_included_one() -> None:
    """URL, agents' URL and CA come from files of the named Secret, never from the environment."""
    found = objects(OWN_REDIS)
    assert not [o for o in found if "redis" in o["metadata"]["name"]]
    pod = only(found, "Deployment")["spec"]["template"]["spec"]
    assert pod["volumes"] == [{"name": "store", "secret": {"secretName": "store", "defaultMode": 0o440}}]
    (container,) = pod["containers"]
    env = {e["name"]: e.get("value") for e in container["env"]}
    assert env["EVERSTEP_STORE_URL_FILE"] == "/etc/everstep/store/url"
    assert env["EVERSTEP_AGENT_STORE_URL_FILE"] == "/etc/everstep/store/agent-url"
    assert env["EVERSTEP_STORE_CA_FILE"] == "/etc/everstep/store/ca.crt"
    assert container["command"] == ["python", "-m", "everstep_operator"]
    assert container["volumeMounts"] == [{"name": "store", "mountPath": "/etc/everstep/store", "readOnly": True}]


def test_the_included_redis_gets_its_passwords_from_the_operator() -> None:
    """One Secret name on both sides, and no password in anything rendered."""
    found = objects({"redis": {"authSecret": "my-auth"}})
    (container,) = only(found, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "everstep_operator.redis_auth"]
    assert "--secret=my-auth" in container["args"]
    assert f"--host={RELEASE}-redis.{NAMESPACE}.svc" in container["args"]
    volumes = only(found, "StatefulSet")["spec"]["template"]["spec"]["volumes"]
    acl = next(v["secret"] for v in volumes if "secret" in v)
    assert (acl["secretName"], [item["key"] for item in acl["items"]]) == ("my-auth", ["users.acl"])
    assert not [o for o in found if o["kind"] == "Secret"]


def test_crds_can_be_left_out() -> None:
    """For a second release in a cluster: nothing cluster-wide is left when namespaces are named."""
    kinds = {o["kind"] for o in objects({**WATCHED, "crds": {"enabled": False}})}
    assert kinds == {"ServiceAccount", "Role", "RoleBinding", "Service", "Deployment", "ConfigMap", "StatefulSet"}


def test_the_cluster_wide_part_outlives_the_release() -> None:
    """`helm uninstall` must neither delete every run nor open a gap in who may answer."""
    for item in objects(chart=CRDS_CHART):
        assert item["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep", item["metadata"]["name"]


def test_names_stay_within_limits() -> None:
    """A long release name is cut, and names of two releases in a namespace differ."""
    long = "a" * 53
    for item in objects(release=long):
        assert len(item["metadata"]["name"]) <= 63 or item["kind"] in {
            "CustomResourceDefinition",
            "ClusterRole",
            "ClusterRoleBinding",
        }
        for value in item["metadata"]["labels"].values():
            assert len(value) <= 63
    blue, green = (objects({"crds": {"enabled": False}}, release=release) for release in ("blue", "green"))
    assert not {(o["kind"], o["metadata"]["name"]) for o in blue} & {(o["kind"], o["metadata"]["name"]) for o in green}


def test_notes_say_what_to_type_next() -> None:
    """And what an uninstall keeps."""
    notes = helm("install", RELEASE, CHART, "--namespace", "x", "--dry-run=client", "--set", "watchNamespaces={team-a}")
    wanted = ["rollout status deployment/everstep", "-n team-a apply -f crds/examples/", "everstep-approver"]
    for text in [*wanted, "everstep-keys", "data-everstep-redis-0"]:
        assert text in notes, text
