"""One word per thing: names that were chosen stay chosen in code, CRDs, logs and docs."""

import re
from pathlib import Path

import pytest
from tests.tidy.test_house_rules import ROOT, SOURCES, python_files

# word that must not be used → the word of the project
SYNONYMS = {
    r"\bcheckpointer\b": "journal",
    r"\bsuspend_point\b": "park",
    r"\bworkflow_id\b": "journal id / run",
    r"\bactivity\b": "step",
    r"\btimeout_seconds\b|\btimeout_sec\b": "timeout_s",
    r"\bside_effect\b": "effect",
}


@pytest.mark.parametrize("pattern", sorted(SYNONYMS))
def test_the_chosen_word_is_used(pattern: str) -> None:
    rule = re.compile(pattern)
    hits = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in python_files(*SOURCES)
        for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1)
        if rule.search(line)
    ]
    assert not hits, f"say {SYNONYMS[pattern]!r} instead of {pattern}: {hits}"
