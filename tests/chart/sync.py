"""`python -m tests.chart.sync`: copy crds/ into the chart everstep-crds, and that chart into the chart everstep.

The copies are committed, so that `helm install charts/everstep` works from a checkout; test_copies.py compares them.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CRDS = ROOT / "crds"
CRDS_CHART = ROOT / "charts" / "everstep-crds"
INCLUDED_CHART = ROOT / "charts" / "everstep" / "charts" / "everstep-crds"


def copies() -> Iterator[tuple[Path, Path]]:
    """Every file with the place of its copy; copies of copies come last."""
    for source in sorted(CRDS.glob("*.yaml")):
        yield source, CRDS_CHART / "files" / source.name
    for source in sorted(path for path in CRDS_CHART.rglob("*") if path.is_file()):
        yield source, INCLUDED_CHART / source.relative_to(CRDS_CHART)


def main() -> None:
    """Make all copies anew; what has no source any more goes."""
    shutil.rmtree(CRDS_CHART / "files", ignore_errors=True)
    shutil.rmtree(INCLUDED_CHART, ignore_errors=True)
    # One after the other, since the second kind of copies has the first as its sources.
    for inner in (False, True):
        for source, copy in list(copies()):
            if source.is_relative_to(CRDS_CHART) == inner:
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)


if __name__ == "__main__":
    main()
