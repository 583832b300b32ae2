"""The house rules as tests: layout, sizes, docstrings, one place for clocks, keys and environment, words that must not appear."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("agent_image/everstep", "operator/everstep_operator")
FILE_MAX_LINES = 500
FUNCTION_MAX_LINES = 70


def tracked() -> list[Path]:
    """Every file git tracks or would track."""
    out = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [ROOT / line for line in out.splitlines() if (ROOT / line).is_file()]


def python_files(*below: str) -> list[Path]:
    return [p for p in tracked() if p.suffix == ".py" and (not below or str(p.relative_to(ROOT)).startswith(below))]


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def where(path: Path, node: ast.AST | None = None) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def test_operator_directory_never_shadows_the_standard_library() -> None:
    """`operator/` is a source root; an `__init__.py` in it would replace the standard library's `operator`."""
    assert not (ROOT / "operator" / "__init__.py").exists()
    code = "import collections, operator; assert 'everstep' not in (operator.__file__ or ''), operator.__file__"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("limit", [FILE_MAX_LINES])
def test_files_are_small(limit: int) -> None:
    long = [
        f"{where(p)} {n} lines"
        for p in python_files()
        if (n := len(p.read_text(encoding="utf-8").splitlines())) > limit
    ]
    assert not long, f"files over {limit} lines: {long}"


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_functions_are_small() -> None:
    long = [
        f"{where(p, f)} {f.name} {f.end_lineno - f.lineno + 1} lines"
        for p in python_files()
        for f in functions(parsed(p))
        if f.end_lineno is not None and f.end_lineno - f.lineno + 1 > FUNCTION_MAX_LINES
    ]
    assert not long, f"functions over {FUNCTION_MAX_LINES} lines: {long}"


def _undocumented(path: Path) -> Iterator[str]:
    tree = parsed(path)
    if not ast.get_docstring(tree):
        yield f"{where(path)} module"
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        if any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list):
            continue  # the implementation, which comes last, says it
        if not ast.get_docstring(node):
            yield f"{where(path, node)} {node.name}"


def test_public_names_are_documented() -> None:
    missing = [m for p in python_files(*SOURCES) for m in _undocumented(p)]
    assert not missing, "without a docstring:\n" + "\n".join(missing)


def test_every_test_module_says_what_it_is_about() -> None:
    missing = [where(p) for p in python_files("tests") if p.name != "__init__.py" and not ast.get_docstring(parsed(p))]
    assert not missing, missing


def test_packages_say_what_belongs_in_them() -> None:
    bad = [
        where(p)
        for p in python_files(*SOURCES)
        if p.name == "__init__.py" and "must not" not in (ast.get_docstring(parsed(p)) or "").lower()
    ]
    bad = [b for b in bad if not b.startswith("agent_image/everstep/__init__.py")]
    assert not bad, f"package docstrings that do not say what must not be in them: {bad}"


BANNED_CALLS = {
    "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns",
    "uuid.uuid4", "uuid.uuid1", "os.urandom", "secrets.token_hex", "secrets.token_bytes", "random.random", "random.uniform",
    "random.randint", "datetime.now", "datetime.utcnow", "datetime.datetime.now",
}  # fmt: skip


def test_clocks_and_randomness_live_in_one_place() -> None:
    found = []
    for path in python_files(*SOURCES):
        if path.name == "clock.py":
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in BANNED_CALLS:
                found.append(f"{where(path, node)} {ast.unparse(node)}")
    assert not found, f"read clocks and randomness through everstep.clock: {found}"


def test_redis_keys_are_formatted_in_one_place() -> None:
    found = []
    for path in python_files(*SOURCES):
        if path.name == "keys.py":
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.match(r"es:[^ ]*\{", node.value):
                found.append(where(path, node))
    assert not found, f"format keys in everstep/journal/keys.py: {found}"


ENVIRONMENT_READERS = {
    "agent_image/everstep/run/__main__.py",
    "agent_image/everstep/contract.py",
    "agent_image/everstep/faults.py",
    "operator/everstep_operator/settings.py",
    "operator/everstep_operator/__main__.py",
    "operator/everstep_operator/inspect.py",  # a process of its own, started by kubectl exec
}


def test_the_environment_is_read_in_one_place_per_process() -> None:
    found = []
    for path in python_files(*SOURCES):
        rel = str(path.relative_to(ROOT))
        if rel in ENVIRONMENT_READERS or rel.startswith(("agent_image/everstep/cli/", "agent_image/everstep/local/")):
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in {"os.environ", "os.getenv"}:
                found.append(where(path, node))
    assert not found, f"environment read outside contract/settings: {found}"


def test_every_dependency_has_its_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    wanted = [*data["project"]["dependencies"]]
    for extra, names in data["project"]["optional-dependencies"].items():
        if extra != "dev":
            wanted += names
    lines = text.splitlines()
    bare = [w for w in wanted if not any(f'"{w}"' in line and "#" in line for line in lines)]
    assert not bare, f"dependencies without a reason beside them: {bare}"


# Built from pieces, so that this file does not contain what it looks for.
FORBIDDEN = [
    re.compile(r"/wo" + r"rk/"),
    re.compile(r"\.\./sha" + r"red|\bsha" + r"red/(design|failures|anchors|kind-recipe|proofs)"),
    re.compile(
        r"(pypi|pythonhosted)\.or" + r"g|files\.python" + r"hosted|registry\.npmjs"
        r"|proxy\.golang\." + r"|deb\.debian\.or" + r"g|crates\.i" + r"o\b|repo1?\.maven"
    ),
    re.compile(r"(?i)\bsub-?agent\b|\bhelper session|\bpolyglot\b"),
]  # fmt: skip


def test_text_speaks_of_the_project_alone() -> None:
    """No path outside the repository, no package registry's host, nothing about how the project was made."""
    found = []
    for path in tracked():
        if path.suffix in {".png", ".svg", ".tgz", ".db"}:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            found += [
                f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}" for rule in FORBIDDEN if rule.search(line)
            ]
    assert not found, "\n".join(found)


def test_suppressions_state_a_reason() -> None:
    """`# type: ignore[...]` and `# noqa: ...` carry a reason after a second `#` or ` - `."""
    bare = []
    pattern = re.compile(r"#\s*(type:\s*ignore(\[[^\]]*\])?|noqa(:\s*[A-Z0-9, ]+)?)\s*(?P<rest>.*)$")
    for path in python_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = pattern.search(line)
            if match and len(match["rest"].strip(" #-—:")) < 8 and "re.compile" not in line:
                bare.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not bare, "suppressions without a reason:\n" + "\n".join(bare)


def test_nothing_is_skipped_or_expected_to_fail() -> None:
    """A test that is skipped or allowed to fail proves nothing; a missing server is handled by tests/support."""
    bad = []
    for path in python_files("tests"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in {
                "pytest.mark.skip",
                "pytest.mark.xfail",
                "pytest.xfail",
            }:
                bad.append(where(path, node))
    assert not bad, bad


def test_ci_runs_what_the_readme_says() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make test" in ci
    assert "CI=true" in ci
    assert "make test" in readme
    assert "make demo" in readme
