"""Copies are committed so that a checkout can be installed; each equals its source, and helm renders what crds/ says."""

from typing import Any

import pytest
import yaml

from tests.chart import rendering
from tests.chart.sync import CRDS, CRDS_CHART, INCLUDED_CHART, ROOT, copies

HINT = "run `python -m tests.chart.sync`"


def test_every_copy_equals_its_source() -> None:
    """Byte for byte, and no copy without a source."""
    expected = {copy: source for source, copy in copies()}
    differing = [
        str(copy.relative_to(ROOT))
        for copy, source in expected.items()
        if not copy.exists() or copy.read_bytes() != source.read_bytes()
    ]
    assert not differing, f"copies that are not their source's: {differing}; {HINT}"
    there = {path for folder in (CRDS_CHART / "files", INCLUDED_CHART) for path in folder.rglob("*") if path.is_file()}
    assert there == expected.keys(), f"copies without a source: {there - expected.keys()}; {HINT}"


def crd_files() -> list[str]:
    return sorted(path.name for path in CRDS.glob("*.yaml"))


@pytest.mark.parametrize("chart", [rendering.CRDS_CHART, rendering.CHART], ids=lambda chart: str(chart.name))
def test_helm_renders_the_crds_unchanged(chart: Any) -> None:
    """Only labels and the annotation that keeps them are added; no number or rule is changed on the way."""
    rendered = {
        o["metadata"]["name"]: o for o in rendering.objects(chart=chart) if o["kind"] == "CustomResourceDefinition"
    }
    assert len(rendered) == len(crd_files())
    for file in crd_files():
        source = yaml.safe_load((CRDS / file).read_text(encoding="utf-8"))
        found = rendered[source["metadata"]["name"]]
        assert found["spec"] == source["spec"], file
        assert found["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        extra = {**found["metadata"]["annotations"]}
        extra.pop("helm.sh/resource-policy")
        assert extra == source["metadata"].get("annotations", {})


def test_both_charts_have_one_version() -> None:
    """The dependency names the version it contains."""
    outer = yaml.safe_load((rendering.CHART / "Chart.yaml").read_text(encoding="utf-8"))
    inner = yaml.safe_load((rendering.CRDS_CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert outer["version"] == inner["version"] == outer["dependencies"][0]["version"]
    assert outer["appVersion"] == inner["appVersion"]
