"""Follows agent code through a project: which functions an agent reaches, outside the bodies of steps."""

import ast
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from everstep.check.inspecting import Inspector
from everstep.check.project import Function, Module, Project
from everstep.check.rules import RULES, Rule
from everstep.errors import ConfigError


@dataclass(frozen=True, order=True)
class Finding:
    """One place. Lines count from 1, columns from 1."""

    path: Path
    line: int
    column: int
    code: str
    what: str
    """The source that was found, shortened."""
    trail: str
    """How agent code comes here: `run → helper`."""

    @property
    def rule(self) -> Rule:
        return RULES[self.code]


@dataclass(frozen=True)
class Reached:
    """A function of agent code."""

    module: Module
    function: Function
    trail: str
    owner: ast.ClassDef | None = None
    around: "Reached | None" = None
    """The function it is defined in."""


@dataclass
class Walk:
    """One check: give it agents, then read `findings`."""

    project: Project
    findings: set[Finding] = field(default_factory=set)
    _queue: deque[Reached] = field(default_factory=deque)
    _seen: set[int] = field(default_factory=set)
    _made: list[tuple[Module, ast.ClassDef, str]] = field(default_factory=list)
    """Classes of the project that agent code makes objects of."""
    _called: dict[str, str] = field(default_factory=dict)
    """Names of methods that agent code calls on whatever object → trail."""

    def agents(self, module: Module, name: str = "") -> int:
        """Begin at the agents of a module, or at one of them; how many."""
        found = [f for f in module.functions.values() if module.kind(f) == "agent" and name in ("", f.name)]
        for function in found:
            self.reach(Reached(module, function, function.name))
        return len(found)

    def reach(self, reached: Reached) -> None:
        """A function is agent code, too."""
        if id(reached.function) in self._seen or reached.module.kind(reached.function) == "step":
            return
        self._seen.add(id(reached.function))
        self._queue.append(reached)

    def go(self) -> list[Finding]:
        """Follow all calls. Raises ConfigError for source that cannot be read."""
        while self._queue:
            while self._queue:
                Inspector(self, self._queue.popleft()).go()
            self._methods()
        return sorted(self.findings)

    # --- told by the inspector ------------------------------------------------------------------------------------

    def refers(self, place: Reached, full: str) -> None:
        """Agent code names something by its full dotted name."""
        found = self.find(place.module, full)
        if found is None:
            return
        module, thing = found
        trail = f"{place.trail} → {thing.name}"
        if isinstance(thing, ast.ClassDef):
            self._made.append((module, thing, trail))
            self._method(module, thing, "__init__", trail)
            self._method(module, thing, "__post_init__", trail)
        else:
            self.reach(Reached(module, thing, trail))

    def find(self, module: Module, full: str) -> tuple[Module, Function | ast.ClassDef] | None:
        """A function or class of the project."""
        if "." not in full:
            own = module.functions.get(full) or module.classes.get(full)
            return (module, own) if own is not None else None
        return self.project.find(full)

    def calls_method(self, name: str, trail: str) -> None:
        """Agent code calls a method of an object whose class is not known."""
        self._called.setdefault(name, trail)

    def calls_own(self, place: Reached, name: str) -> None:
        """`self.name(…)`."""
        if place.owner is not None:
            self._method(place.module, place.owner, name, place.trail)

    def _methods(self) -> None:
        for module, owner, trail in list(self._made):
            for name in self._called:
                self._method(module, owner, name, trail)

    def _method(self, module: Module, owner: ast.ClassDef, name: str, trail: str) -> None:
        for found_in, cls in self._family(module, owner):
            for node in cls.body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                    self.reach(Reached(found_in, node, f"{trail}.{name}" if not name.startswith("__") else trail, cls))

    def _family(self, module: Module, cls: ast.ClassDef, depth: int = 0) -> Iterator[tuple[Module, ast.ClassDef]]:
        yield module, cls
        for base in cls.bases if depth < _DEPTH_MAX else []:
            found = self.find(module, module.full_name(base) or "?")
            if found is not None and isinstance(found[1], ast.ClassDef):
                yield from self._family(found[0], found[1], depth + 1)

    def report(self, place: Reached, code: str, node: ast.AST, what: str, lines: set[int]) -> None:
        """A finding, unless its line, its statement or its function carries a suppression."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
        around: Reached | None = place
        while around is not None:
            lines |= {around.function.lineno}
            around = around.around
        marked = sorted(lines & place.module.allowed.keys())
        if any(place.module.allowed[at] for at in marked):
            return
        if marked:
            code, line, column = "ES000", marked[0], 1
        self.findings.add(Finding(place.module.path, line, column, code, what, place.trail))


_DEPTH_MAX = 8


def check(target: str, directory: Path) -> tuple[list[Finding], int]:
    """Findings of `module:agent`, `module` or `FILE.py`, and how many agents were looked at. Raises ConfigError."""
    name, _, agent = target.partition(":")
    if name.endswith(".py"):
        path = (directory / name).resolve()
        project = Project([_root(path), directory])
        module = project.file(path)
    else:
        project = Project([directory])
        found = project.module(name)
        if found is None:
            raise ConfigError(
                f"there is no module {name} below {directory}; give a FILE.py, or run this where it is found"
            )
        module = found
    walk = Walk(project)
    agents = walk.agents(module, agent)
    if not agents:
        there = [f.name for f in module.functions.values() if module.kind(f) == "agent"]
        has = f"it has {', '.join(there)}" if there else "it has no @everstep.agent at its top level"
        raise ConfigError(f"{target}: no such agent in {module.path}; {has}")
    return walk.go(), agents


def _root(path: Path) -> Path:
    """Where the package that holds a file begins."""
    root = path.parent
    while (root / "__init__.py").is_file() and root.parent != root:
        root = root.parent
    return root
