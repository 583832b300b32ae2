"""Values reach the operator: every setting has a value of the chart, every variable the chart sets is a setting it accepts."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from everstep_operator.settings import Settings
from tests.chart.rendering import OWN_REDIS, objects, only

NOT_IN_THE_CHART = {
    "EVERSTEP_STORE_URL",  # credentials do not belong into a pod's environment; the file does it
    "EVERSTEP_OPERATOR_FAULTS",  # tests alone; operator.extraEnv can set them
    "EVERSTEP_OPERATOR_FAULTS_DIR",
}


def environment(values: Mapping[str, Any]) -> dict[str, str]:
    """The operator's variables as its container gets them."""
    (container,) = only(objects(values), "Deployment")["spec"]["template"]["spec"]["containers"]
    found = {e["name"]: e.get("value", "the-namespace") for e in container["env"]}
    assert len(found) == len(container["env"]), "a variable is set twice"
    assert all(isinstance(value, str) for value in found.values())
    return found


def settings(values: Mapping[str, Any], tmp_path: Any) -> Settings:
    """What the operator reads from them; files it names are put in place."""
    env = environment(values)
    for name in ("EVERSTEP_STORE_URL_FILE", "EVERSTEP_AGENT_STORE_URL_FILE", "EVERSTEP_STORE_CA_FILE"):
        if name in env:
            file = tmp_path / name
            file.write_text("redis://h:6379/0")
            env[name] = str(file)
    return Settings.from_env(env)


def test_every_setting_has_a_value_and_every_variable_a_setting() -> None:
    """In both directions, with the included Redis and with one's own."""
    known = {f.metadata["env"] for f in dataclasses.fields(Settings)}
    ours = {name for values in ({}, OWN_REDIS) for name in environment(values) if name.startswith("EVERSTEP_")}
    assert ours == known - NOT_IN_THE_CHART


def test_the_charts_defaults_are_the_operators(tmp_path: Any) -> None:
    """One default per setting; the chart adds only names of its own objects and the image that fits it."""
    found = settings({}, tmp_path)
    own = {
        "installation",
        "operator_namespace",
        "store_url",
        "store_url_file",
        "agent_store_url_file",
        "key_secret",
        "default_image",
    }
    for f in dataclasses.fields(Settings):
        if f.name not in own and f.name != "agent_resources":
            assert getattr(found, f.name) == f.default, f.name
    assert found.default_resources() == Settings(agent_resources=Settings.agent_resources).default_resources()
    assert found.installation == "everstep-system-everstep"
    assert found.default_image == "everstep/agent:0.1.0"


CASES: list[tuple[Mapping[str, Any], str, object]] = [
    ({"watchNamespaces": ["b", "a"]}, "watch_namespaces", ("b", "a")),
    ({"installation": "prod"}, "installation", "prod"),
    ({"journal": {"durability": "EverySecond"}}, "durability", "EverySecond"),
    ({"journal": {"durabilityDeclared": True}}, "durability_declared", True),
    ({"journal": {"checkSeconds": 0.5}}, "durability_check_s", 0.5),
    ({"journal": {"sweep": {"afterSeconds": 31536000}}}, "sweep_after_s", 31536000.0),
    ({"journal": {"keySecret": "my-keys"}}, "key_secret", "my-keys"),
    ({"agent": {"allowedServiceAccounts": ["x", "y"]}}, "allowed_service_accounts", ("x", "y")),
    ({"agent": {"nodeLoss": {"policy": "Wait", "afterSeconds": 5}}}, "node_loss_after_s", 5),
    ({"agent": {"image": {"repository": ""}}}, "default_image", ""),
    ({"agent": {"image": {"repository": "my/agent", "tag": "7"}}}, "default_image", "my/agent:7"),
    ({"operator": {"workers": 64}}, "workers", 64),
    ({"operator": {"logFormat": "json"}}, "log_format", "json"),
]


@pytest.mark.parametrize(("values", "name", "expected"), CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_a_value_arrives(values: Mapping[str, Any], name: str, expected: object, tmp_path: Any) -> None:
    """As what was written, large numbers and fractions included."""
    assert getattr(settings(values, tmp_path), name) == expected


def test_agent_resources_replace_the_defaults(tmp_path: Any) -> None:
    """helm merges maps; a null removes a default."""
    values = {"agent": {"resources": {"limits": {"memory": "2Gi", "nvidia.com/gpu": 1}, "requests": {"cpu": None}}}}
    assert settings(values, tmp_path).default_resources() == {
        "limits": {"memory": "2Gi", "nvidia.com/gpu": 1},
        "requests": {"memory": "256Mi"},
    }
