"""Modules of a project as source: what their names mean, which functions they hold, which of them are agents and steps.

Nothing is imported or run. A module is the project's own if its file lies below one of the roots; all others are libraries, of
which only the names count.
"""

import ast
import tokenize
from dataclasses import dataclass, field
from pathlib import Path

from everstep.check.rules import MUTATORS
from everstep.errors import ConfigError

Function = ast.FunctionDef | ast.AsyncFunctionDef
MARK = "everstep: ok"


@dataclass
class Module:
    """One source file."""

    name: str
    path: Path
    tree: ast.Module
    imports: dict[str, str] = field(default_factory=dict)
    """Local name → full dotted name of what was imported."""
    functions: dict[str, Function] = field(default_factory=dict)
    """At the top level."""
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    mutable: set[str] = field(default_factory=set)
    """Top-level names bound to a list, dict or set."""
    changed: set[str] = field(default_factory=set)
    """Top-level names that the body of a step changes."""
    allowed: dict[int, str] = field(default_factory=dict)
    """Line → reason of a suppression."""

    def kind(self, function: Function) -> str:
        """`agent`, `step` or "" by its decorators."""
        for decorator in function.decorator_list:
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            full = self.full_name(target)
            if full in ("everstep.agent", "everstep.run.agents.agent"):
                return "agent"
            if full in ("everstep.step", "everstep.run.steps.step"):
                return "step"
        return ""

    def full_name(self, node: ast.AST, shadowed: frozenset[str] = frozenset()) -> str:
        """The dotted name an expression stands for by this module's imports; "" if it is no plain name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id in shadowed:
            return ""
        head = self.imports.get(node.id, node.id)
        return ".".join([head, *reversed(parts)])


class Project:
    """The modules found so far. `roots` are the directories where its packages begin."""

    def __init__(self, roots: list[Path]) -> None:
        self.roots = [root.resolve() for root in dict.fromkeys(roots)]
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """A module of the project by its dotted name; None if it is a library's. Raises ConfigError for a syntax error."""
        if name not in self._modules:
            self._modules[name] = None
            for root in self.roots:
                base = root.joinpath(*name.split("."))
                for path in (base.with_suffix(".py"), base / "__init__.py"):
                    if path.is_file():
                        self._modules[name] = _read(name, path)
                        return self._modules[name]
        return self._modules[name]

    def file(self, path: Path) -> Module:
        """A module by its file. Raises ConfigError."""
        path = path.resolve()
        if not path.is_file():
            raise ConfigError(f"there is no file {path}")
        for root in self.roots:
            if path.is_relative_to(root):
                parts = path.relative_to(root).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                found = self.module(name) if name else None
                if found is not None and found.path == path:
                    return found
        return _read(path.stem, path)

    def find(self, full: str) -> tuple[Module, Function | ast.ClassDef] | None:
        """The function or class of the project with this dotted name; follows re-exports."""
        for _ in range(_HOPS_MAX):
            owner, _, name = full.rpartition(".")
            module = self.module(owner) if owner else None
            if module is None:
                return None
            found = module.functions.get(name) or module.classes.get(name)
            if found is not None:
                return module, found
            if name not in module.imports:
                return None
            full = module.imports[name]
        return None


_HOPS_MAX = 10


def _read(name: str, path: Path) -> Module:
    try:
        with tokenize.open(path) as source:
            text = source.read()
        tree = ast.parse(text, str(path))
    except (OSError, SyntaxError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} cannot be read as Python: {e}") from e
    module = Module(name, path, tree)
    for number, line in enumerate(text.splitlines(), 1):
        _, hash_, comment = line.partition("#")
        if hash_ and MARK in comment:
            module.allowed[number] = comment.partition(MARK)[2].strip()
    for node in ast.walk(tree):
        _take_import(module, node)
    for statement in tree.body:
        _take_top_level(module, statement)
    for function in module.functions.values():
        if module.kind(function) == "step":
            module.changed |= _changed_by(function, module.mutable)
    return module


def _changed_by(function: Function, mutable: set[str]) -> set[str]:
    """Top-level names that a function binds anew or changes in place."""
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Global):
            found.update(node.names)
        changed: ast.AST | None = None
        if (isinstance(node, ast.Attribute) and node.attr in MUTATORS) or (
            isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
        ):
            changed = node.value
        if isinstance(changed, ast.Name) and changed.id in mutable:
            found.add(changed.id)
    return found


def _take_import(module: Module, node: ast.AST) -> None:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname:
                module.imports[alias.asname] = alias.name
            else:
                top = alias.name.partition(".")[0]
                module.imports[top] = top
    elif isinstance(node, ast.ImportFrom):
        owner = _absolute(module, node)
        for alias in node.names:
            module.imports[alias.asname or alias.name] = f"{owner}.{alias.name}" if owner else alias.name


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    is_package = module.path.name == "__init__.py"
    parts = module.name.split(".")
    parts = parts[: len(parts) - node.level + is_package]
    return ".".join([*parts, node.module] if node.module else parts)


def _take_top_level(module: Module, statement: ast.stmt) -> None:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        module.functions[statement.name] = statement
    elif isinstance(statement, ast.ClassDef):
        module.classes[statement.name] = statement
    elif isinstance(statement, ast.Assign | ast.AnnAssign) and _is_mutable(statement.value):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        module.mutable.update(t.id for t in targets if isinstance(t, ast.Name))
    elif isinstance(statement, ast.If | ast.Try):
        for inner in [*statement.body, *statement.orelse]:
            _take_top_level(module, inner)


def _is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name | ast.Attribute):
        name = value.func.id if isinstance(value.func, ast.Name) else value.func.attr
        return name in ("list", "dict", "set", "defaultdict", "deque", "Counter", "OrderedDict")
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)
