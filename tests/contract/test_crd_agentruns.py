"""The AgentRun CRD against the models that read and write it, field by field; every field described and bounded (design §3)."""

import typing
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel

from everstep.ids import Attempt, JournalId, RecordHash, RunName, Seq
from everstep_operator.api import words
from everstep_operator.api.meta import RunRef
from everstep_operator.api.models import AgentRunSpec, AgentRunStatus, read_spec
from everstep_operator.api.pod import AttemptPlan, PodDefaults, build_attempt_pod

CRD: dict[str, Any] = yaml.safe_load((Path(__file__).parents[2] / "crds" / "agentruns.yaml").read_text())
VERSION: dict[str, Any] = CRD["spec"]["versions"][0]
SCHEMA: dict[str, Any] = VERSION["schema"]["openAPIV3Schema"]

Field = tuple[str, dict[str, Any], Any]


def model_fields(model: type[BaseModel]) -> dict[str, Any]:
    """Wire name → annotation."""
    return {(f.alias or name): f.annotation for name, f in model.model_fields.items()}


def unwrapped(annotation: Any) -> Any:
    """Without `| None`."""
    args = [a for a in get_args(annotation) if a is not type(None)]
    return args[0] if args and type(None) in get_args(annotation) else annotation


def pairs(path: str, schema: dict[str, Any], model: type[BaseModel]) -> list[Field]:
    """Every field that both sides have, with nested models and lists of them."""
    found: list[Field] = []
    for name, annotation in model_fields(model).items():
        sub, inner = schema["properties"].get(name), unwrapped(annotation)
        if sub is None:
            continue
        found.append((f"{path}.{name}", sub, inner))
        if get_origin(inner) is tuple:
            inner, sub = get_args(inner)[0], sub["items"]
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found += pairs(f"{path}.{name}", sub, inner)
    return found


def objects(
    path: str, schema: dict[str, Any], model: type[BaseModel]
) -> list[tuple[str, dict[str, Any], type[BaseModel]]]:
    found = [(path, schema, model)]
    for name, sub, annotation in pairs(path, schema, model):
        inner, place = annotation, sub
        if get_origin(inner) is tuple:
            inner, place = get_args(inner)[0], sub["items"]
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found.append((name, place, inner))
    return found


SPEC_AND_STATUS = [
    *objects("spec", SCHEMA["properties"]["spec"], AgentRunSpec),
    *objects("status", SCHEMA["properties"]["status"], AgentRunStatus),
]


@pytest.mark.parametrize(("path", "schema", "model"), SPEC_AND_STATUS, ids=[o[0] for o in SPEC_AND_STATUS])
def test_schema_and_model_have_the_same_fields(path: str, schema: dict[str, Any], model: type[BaseModel]) -> None:
    assert set(schema["properties"]) == set(model_fields(model)), path


def expected_type(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is typing.Literal:
        return "string"
    if origin in (tuple, list):
        return "array"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "object"
    return {str: "string", int: "integer", bool: "boolean"}[annotation]


ALL_PAIRS = [
    *pairs("spec", SCHEMA["properties"]["spec"], AgentRunSpec),
    *pairs("status", SCHEMA["properties"]["status"], AgentRunStatus),
]


@pytest.mark.parametrize(("path", "schema", "annotation"), ALL_PAIRS, ids=[p[0] for p in ALL_PAIRS])
def test_types_agree(path: str, schema: dict[str, Any], annotation: Any) -> None:
    assert schema["type"] == expected_type(annotation), path
    if get_origin(annotation) is typing.Literal:
        assert set(schema["enum"]) == set(get_args(annotation))


def test_defaults_agree() -> None:
    """What the description promises is what the model does; the one default in the schema is the model's, too."""
    spec = AgentRunSpec.model_validate({"agent": {"entrypoint": "a:b"}})
    properties = SCHEMA["properties"]["spec"]["properties"]
    assert properties["desiredState"]["default"] == spec.desired_state
    for text, value in (
        (properties["restarts"]["properties"]["application"]["properties"]["max"], spec.restarts.application.max),
        (
            properties["restarts"]["properties"]["application"]["properties"]["backoffSeconds"],
            spec.restarts.application.backoff_seconds,
        ),
        (
            properties["restarts"]["properties"]["application"]["properties"]["backoffMaxSeconds"],
            spec.restarts.application.backoff_max_seconds,
        ),
        (properties["restarts"]["properties"]["outOfMemory"]["properties"]["max"], spec.restarts.out_of_memory.max),
        (
            properties["restarts"]["properties"]["outOfMemory"]["properties"]["memoryFactorPercent"],
            spec.restarts.out_of_memory.memory_factor_percent,
        ),
        (properties["cancelGraceSeconds"], spec.cancel_grace_seconds),
        (
            properties["template"]["properties"]["terminationGracePeriodSeconds"],
            spec.template.termination_grace_period_seconds,
        ),
    ):
        assert f"Default {value}" in text["description"], text


def every_schema(path: str, schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    found = [(path, schema)]
    for name, sub in (schema.get("properties") or {}).items():
        found += every_schema(f"{path}.{name}", sub)
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            found += every_schema(f"{path}[]", schema[name])
    return found


EVERYTHING = [s for s in every_schema("AgentRun", SCHEMA) if s[0] != "AgentRun.metadata"]


@pytest.mark.parametrize(("path", "schema"), EVERYTHING, ids=[s[0] for s in EVERYTHING])
def test_every_field_is_described_and_bounded(path: str, schema: dict[str, Any]) -> None:
    assert len(schema.get("description", "")) >= 4, f"{path} has no description"
    if path in ("AgentRun.apiVersion", "AgentRun.kind"):
        return
    if "type" not in schema:
        assert schema["x-kubernetes-preserve-unknown-fields"], f"{path} has no type"
        return
    kind = schema["type"]
    if kind == "string":
        assert "maxLength" in schema or "enum" in schema or schema.get("format") == "date-time", (
            f"{path} has no maxLength"
        )
    if kind == "array":
        assert "maxItems" in schema, f"{path} has no maxItems"
    if kind == "object" and "additionalProperties" in schema:
        assert "maxProperties" in schema, f"{path} has no maxProperties"
    assert kind != "number", f"{path}: no floats in the API"
    if path.rsplit(".", 1)[-1].endswith("Seconds"):
        assert kind == "integer", f"{path}: seconds are whole"


def test_what_does_not_work_yet_is_not_in_the_schema() -> None:
    assert not {"budget", "human", "runKey", "resultTo"} & set(SCHEMA["properties"]["spec"]["properties"])


def test_names_and_columns() -> None:
    names = CRD["spec"]["names"]
    assert (CRD["spec"]["group"], names["plural"], names["kind"]) == (words.GROUP, words.RUN_PLURAL, words.RUN_KIND)
    assert (names["shortNames"], names["categories"], VERSION["name"]) == (["arun"], ["everstep"], words.VERSION)
    columns = VERSION["additionalPrinterColumns"]
    assert [c["name"] for c in columns if not c.get("priority")] == [
        "Summary",
        "Reason",
        "Step",
        "Attempt",
        "Restarts",
        "Waiting",
        "Age",
    ]
    assert [c["name"] for c in columns if c.get("priority")] == ["Pod", "Node", "Last step", "Tokens"]
    for column in columns:
        place = SCHEMA
        if column["jsonPath"].startswith(".metadata"):
            continue
        for part in column["jsonPath"].strip(".").split("."):
            place = place["properties"][part]


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("status.properties.conditions", words.Cond),
        ("status.properties.summary", words.Summary),
        ("status.properties.attempts.items.properties.class", words.LossClass),
        ("status.properties.attempts.items.properties.cause", words.Cause),
    ],
)
def test_the_words_of_the_status_are_told_in_the_schema(path: str, kinds: Any) -> None:
    place: Any = SCHEMA["properties"]
    for part in path.split("."):
        place = place[part]
    missing = [word for word in kinds if word not in place["description"]]
    assert not missing, f"{path} does not tell of {missing}"


def test_reasons_are_camel_case_and_fit_a_condition() -> None:
    for kind in (words.Reason, words.Cond, words.EventReason, words.LossClass, words.End, words.Cause):
        for word in kind:
            assert word[0].isupper(), word
            assert word.isalnum(), word
            assert len(word) <= 63, word


EXAMPLES = [
    (path.name, document)
    for path in sorted((Path(__file__).parents[2] / "crds" / "examples").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    if document.get("kind") == "AgentRun"
]


@pytest.mark.parametrize(("name", "run"), EXAMPLES, ids=[e[0] for e in EXAMPLES])
def test_examples_are_read_whole_and_make_a_pod(name: str, run: dict[str, Any]) -> None:
    """Nothing in an example is a field that the models, or the schema, do not know."""
    spec = read_spec(run["spec"])
    assert _known(run["spec"], SCHEMA["properties"]["spec"]) == [], name
    ref = RunRef("default", RunName(run["metadata"]["name"]), JournalId("uid"))
    plan = AttemptPlan(Attempt(1), Seq(0), RecordHash("0" * 64))
    assert build_attempt_pod(ref, spec, plan, PodDefaults(image="default:1"))["metadata"]["name"].endswith("-1")


def _known(value: Any, schema: dict[str, Any], path: str = "spec") -> list[str]:
    """Paths that the schema would prune."""
    if not isinstance(value, dict) or schema.get("x-kubernetes-preserve-unknown-fields"):
        return []
    properties, free = schema.get("properties") or {}, "additionalProperties" in schema
    unknown = [f"{path}.{name}" for name in value if name not in properties and not free]
    return unknown + [
        u for name in value if name in properties for u in _known(value[name], properties[name], f"{path}.{name}")
    ]
