"""values.yaml says what every value means; values.schema.json refuses what is unknown or wrong, naming it."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.chart.rendering import CHART, CRDS_CHART, OWN_REDIS, HelmRefused, template

PASSED_ON = {"requests", "limits"}
"""Below these, keys are Kubernetes' own."""


def lines_with_keys(text: str) -> Iterator[tuple[str, str, str]]:
    """(key, the rest of its line, comment right above it) for every key of a values.yaml that is not part of a list."""
    comment: list[str] = []
    inside_at: int | None = None
    for line in text.splitlines():
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if stripped.startswith("#"):
            comment.append(stripped.lstrip("# "))
            continue
        match = re.match(r"([A-Za-z]\w*):(.*)", stripped)
        if inside_at is not None and indent > inside_at:
            continue
        inside_at = None
        if match:
            if match[1] in PASSED_ON or match[1] in {"resources", "tolerations"}:
                inside_at = indent
            yield match[1], match[2].strip(), " ".join(comment)
        comment = []


@pytest.mark.parametrize("chart", [CHART, CRDS_CHART], ids=lambda chart: str(chart.name))
def test_every_value_is_explained(chart: Any) -> None:
    """A sentence above each key; each value that is not a group also states its default."""
    found = list(lines_with_keys((chart / "values.yaml").read_text(encoding="utf-8")))
    assert len(found) > (60 if chart == CHART else 1)
    bare = [key for key, _, comment in found if len(comment) < 15]
    assert not bare, f"no comment above: {bare}"
    silent = [key for key, value, comment in found if value and "default" not in comment.lower()]
    assert not silent, f"comment without the default and its reason: {silent}"


def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    return found


def resolved(node: Mapping[str, Any]) -> Mapping[str, Any]:
    name = str(node.get("$ref", "")).rpartition("/")[2]
    return schema()["definitions"][name] if name else node


def groups(values: Any, node: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """(path, values, schema) of every group of values that has fixed keys."""
    node = resolved(node)
    if isinstance(values, dict) and "properties" in node:
        yield path, values, node
        for key, value in values.items():
            yield from groups(value, node["properties"].get(key, {}), (*path, key))


def all_groups() -> list[tuple[tuple[str, ...], Any, Any]]:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return list(groups(values, schema(), ()))


def test_schema_and_values_have_the_same_keys() -> None:
    """No value without a type, no type without a documented value."""
    for path, values, node in all_groups():
        assert node.get("additionalProperties") is False, f"{path} accepts unknown keys"
        known = set(node["properties"]) - {"global", "claims"}
        if path == ("agent", "image"):
            known -= {"pullPolicy"}
        assert known == set(values), f"{'.'.join(path)}: {known ^ set(values)}"


def at(path: tuple[str, ...], leaf: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(leaf)
    for key in reversed(path):
        found = {key: found}
    return found


def test_no_rule_stands_beside_a_reference() -> None:
    """Up to draft 7, which Helm 3 reads, whatever stands beside `$ref` is ignored."""

    def walk(node: Any) -> Iterator[Any]:
        yield node
        for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            yield from walk(child)

    assert not [node for node in walk(schema()) if isinstance(node, dict) and "$ref" in node and len(node) > 1]


def test_an_unknown_key_is_refused_at_every_level() -> None:
    """A misspelt value must not be passed over in silence; the message names key and place."""
    for path, _, _ in all_groups():
        with pytest.raises(HelmRefused) as refused:
            template(at(path, {"imge": "x"}))
        assert "additional properties 'imge' not allowed" in str(refused.value)
        assert (f"at '/{'/'.join(path)}'" if path else "at ''") in str(refused.value)


BAD: list[tuple[Mapping[str, Any], list[str]]] = [
    ({"watchNamespaces": "team-a"}, ["/watchNamespaces", "want array"]),
    ({"watchNamespaces": ["Team_A"]}, ["/watchNamespaces/0", "does not match pattern"]),
    ({"watchNamespaces": ["a", "a"]}, ["/watchNamespaces", "equal"]),
    ({"installation": "Prod EU"}, ["/installation"]),
    ({"image": {"tag": "latest"}}, ["/image/tag"]),
    ({"image": {"tag": 1.0}}, ["/image/tag", "want string"]),
    ({"image": {"digest": "sha256:abc"}}, ["/image/digest"]),
    ({"image": {"pullPolicy": "Sometimes"}}, ["/image/pullPolicy", "'Always', 'IfNotPresent', 'Never'"]),
    ({"journal": {"durability": "everysec"}}, ["/journal/durability", "'EveryWrite', 'EverySecond'"]),
    ({"journal": {"durabilityDeclared": "yes"}}, ["/journal/durabilityDeclared", "want boolean"]),
    ({"journal": {"anchorSeconds": 0}}, ["/journal/anchorSeconds"]),
    ({"agent": {"nodeLoss": {"policy": "Delete"}}}, ["/agent/nodeLoss/policy", "'Fence', 'Wait'"]),
    ({"agent": {"nodeLoss": {"afterSeconds": -1}}}, ["/agent/nodeLoss/afterSeconds", "minimum"]),
    ({"agent": {"resources": {"limit": {"memory": "1Gi"}}}}, ["/agent/resources", "'limit' not allowed"]),
    ({"operator": {"workers": 0}}, ["/operator/workers", "minimum"]),
    ({"operator": {"logLevel": "chatty"}}, ["/operator/logLevel", "'DEBUG'"]),
    ({"redis": {"maxMemory": "512Mi"}}, ["/redis/maxMemory", "does not match pattern"]),
    ({"redis": {"runAsUser": 0}}, ["/redis/runAsUser", "minimum"]),
    ({"redis": {"persistence": {"size": "big"}}}, ["/redis/persistence/size"]),
    ({"redis": {"enabled": False}}, ["journal.existingSecret is empty", "kubectl create secret generic"]),
    ({"journal": {"existingSecret": "store"}}, ["exclude each other", "redis.enabled=false"]),
    ({**OWN_REDIS, "installation": ""}, ["installation is empty", "installation=prod-eu"]),
    ({"serviceAccount": {"create": False}}, ["serviceAccount.name is empty"]),
    ({"imagePullSecrets": [{"name": ""}]}, ["/imagePullSecrets/0/name", "minLength"]),
    ({"fullnameOverride": "a" * 41}, ["/fullnameOverride", "maxLength"]),
]


@pytest.mark.parametrize(("values", "words"), BAD, ids=lambda x: json.dumps(x)[:60] if isinstance(x, dict) else "")
def test_bad_values_are_refused_with_the_reason(values: Mapping[str, Any], words: list[str]) -> None:
    """helm prints the path of the value and what would be right."""
    with pytest.raises(HelmRefused) as refused:
        template(values)
    for word in words:
        assert word in str(refused.value), str(refused.value)
