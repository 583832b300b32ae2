"""What one function of agent code does, by its syntax: calls, iteration, globals, handlers, tasks."""

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from everstep.check.project import Function, Module
from everstep.check.rules import (
    ALLOWED,
    CALLS,
    CATCHES_ALL,
    LISTING_METHODS,
    LISTINGS,
    MAKES_TASK,
    METHODS,
    MUTATORS,
    NOT_AGENT_CODE,
    ORDERED_BY,
    PREFIXES,
    READS,
)

if TYPE_CHECKING:
    from everstep.check.walk import Reached, Walk

TIME_GIVEN = {"time.strftime": 2, "time.localtime": 1, "time.gmtime": 1, "time.ctime": 1, "time.asctime": 1}
"""With so many arguments they read no clock."""
TAKES_ORDER = frozenset(
    {"list", "tuple", "enumerate", "iter", "next", "zip", "map", "filter", "reversed", "dict.fromkeys"}
)
LOOPS = ("loop", "asyncio.get_running_loop()", "asyncio.get_event_loop()")
SHOWN = 60


class Inspector:
    """See the module. One per function."""

    def __init__(self, walk: "Walk", place: "Reached") -> None:
        self.walk = walk
        self.place = place
        self.module = place.module
        self.nested: dict[str, Function] = {}
        self.parents: dict[ast.AST, ast.AST] = {}
        nodes = list(self._nodes(place.function))
        self.globals = {name for n in nodes if isinstance(n, ast.Global) for name in n.names}
        self.locals = frozenset(_bound(place.function, nodes) - self.globals)
        around = place.around
        while around is not None:
            inner = list(_plain_nodes(around.function))
            self.locals |= _bound(around.function, inner)
            self.nested = {n.name: n for n in inner if isinstance(n, Function)} | self.nested
            around = around.around
        self.nodes = nodes
        self.sets = _sets(nodes, self.module)

    def go(self) -> None:
        """Report what is found, and tell the walk what else is reached."""
        for node in self.nodes:
            match node:
                case ast.Call():
                    self._call(node)
                case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()):
                    self._read(node)
                case ast.For() | ast.AsyncFor() | ast.comprehension():
                    self._iterates(node.iter, node)
                case ast.Starred(ctx=ast.Load()):
                    self._iterates(node.value, node)
                case ast.ExceptHandler():
                    self._handler(node)
                case ast.Expr(value=ast.Call() as call):
                    self._statement(call)
                case ast.Subscript(ctx=ast.Store() | ast.Del()):
                    self._changes(node.value, node)
                case ast.Name(ctx=ast.Store() | ast.Del()) if node.id in self.globals:
                    self._report("ES007", node, node.id)
                case _:
                    pass

    def _nodes(self, function: Function) -> Iterator[ast.AST]:
        """The function's own nodes, in order; nested functions are noted, not entered, and arguments that are no agent code are
        left out."""
        stack: list[ast.AST] = list(reversed(function.body))
        while stack:
            node = stack.pop()
            yield node
            if isinstance(node, Function):
                self.nested[node.name] = node
                continue
            children = list(ast.iter_child_nodes(node))
            if isinstance(node, ast.AnnAssign):
                children = [c for c in children if c is not node.annotation]
            if isinstance(node, ast.Call) and self._outside(node):
                children = []
            for child in children:
                self.parents[child] = node
            stack.extend(reversed(children))

    def _outside(self, call: ast.Call) -> bool:
        full = self.module.full_name(call.func)
        return full.startswith("everstep.") and full.rpartition(".")[2] in NOT_AGENT_CODE

    # --- calls and names ------------------------------------------------------------------------------------------

    def _name(self, node: ast.AST) -> str:
        return self.module.full_name(node, self.locals)

    def _call(self, node: ast.Call) -> None:
        full = self._name(node.func)
        code = self._code_of(full, node) if full else ""
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if isinstance(node.func, ast.Attribute) and method == "fn" and self._is_step(node.func):
            code = "ES012"
        elif not code and method and self._owner_is_unknown(full):
            code = self._code_of_method(node, method)
        if code:
            self._report(code, node, f"{_shown(node.func)}(…)")
        self._ordering(node, full, method)
        if full in ("contextlib.suppress",) and any(self._name(a) in CATCHES_ALL for a in node.args):
            self._report("ES008", node, ast.unparse(node))

    def _code_of(self, full: str, node: ast.Call) -> str:
        if self.walk.find(self.module, full) is not None:
            return ""
        if full in ALLOWED:
            return "" if node.args or node.keywords else "ES002"
        if full in TIME_GIVEN and len(node.args) >= TIME_GIVEN[full]:
            return ""
        if full in LISTINGS:
            return "ES003" if self._ordered(node) else "ES006"
        return CALLS.get(full) or next((code for prefix, code in PREFIXES.items() if full.startswith(prefix)), "")

    def _code_of_method(self, node: ast.Call, method: str) -> str:
        if method in LISTING_METHODS:
            return "ES003" if self._ordered(node) else "ES006"
        return METHODS.get(method, "")

    def _owner_is_unknown(self, full: str) -> bool:
        """Not a function of a module that is known by name."""
        head = full.partition(".")[0]
        return not full or head not in self.module.imports.values() or full.startswith(("pathlib.", "os.path."))

    def _is_step(self, node: ast.Attribute) -> bool:
        found = self.walk.find(self.module, self._name(node.value) or "?")
        return found is not None and isinstance(found[1], Function) and found[0].kind(found[1]) == "step"

    def _read(self, node: ast.Name | ast.Attribute) -> None:
        parent = self.parents.get(node)
        full = self._name(node)
        if isinstance(node, ast.Attribute):
            if isinstance(parent, ast.Call) and parent.func is node:
                self._method_call(node)
        elif node.id in self.nested:
            self.walk.reach(_within(self.place, self.nested[node.id]))
            return
        elif full == node.id and node.id in self.module.changed:
            self._report("ES007", node, node.id)
        if not full or (isinstance(parent, ast.Attribute) and self._name(parent) in READS):
            return
        if full in READS and not (isinstance(parent, ast.Attribute) and self._name(parent) in CALLS):
            self._report(READS[full], node, _shown(node))
        self.walk.refers(self.place, full)

    def _method_call(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            self.walk.calls_own(self.place, node.attr)
        else:
            self.walk.calls_method(node.attr, self.place.trail)
        if node.attr in MUTATORS:
            self._changes(node.value, node)

    def _changes(self, value: ast.AST, node: ast.AST) -> None:
        """Something is changed in place."""
        if isinstance(value, ast.Name) and value.id in self.module.mutable and value.id not in self.locals:
            self._report("ES007", node, value.id)

    # --- order ----------------------------------------------------------------------------------------------------

    def _ordering(self, node: ast.Call, full: str, method: str) -> None:
        takes = full in TAKES_ORDER or full == "asyncio.as_completed" or method in ("join", "map")
        for argument in node.args if takes else []:
            self._iterates(argument, node)
        if method == "pop" and isinstance(node.func, ast.Attribute) and not node.args:
            self._iterates(node.func.value, node)

    def _iterates(self, value: ast.AST, node: ast.AST) -> None:
        if not self._unordered(value):
            return
        parent = self.parents.get(node)
        if isinstance(node, ast.comprehension):
            if isinstance(parent, ast.SetComp) or (parent is not None and self._ordered(parent)):
                return
        elif self._ordered(node):
            return
        self._report("ES006", value, _shown(value))

    def _unordered(self, value: ast.AST) -> bool:
        if isinstance(value, ast.Name):
            return value.id in self.sets
        return _is_set(value, self.module, self.sets)

    def _ordered(self, node: ast.AST) -> bool:
        """It is given straight to something that puts it in order, or that does not mind."""
        parent = self.parents.get(node)
        return isinstance(parent, ast.Call) and node in parent.args and self._name(parent.func) in ORDERED_BY

    # --- handlers and statements ----------------------------------------------------------------------------------

    def _handler(self, node: ast.ExceptHandler) -> None:
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        catches = any(kind is None or self._name(kind) in CATCHES_ALL for kind in kinds)
        if catches and not any(isinstance(n, ast.Raise) for inner in node.body for n in ast.walk(inner)):
            self._report("ES008", node, f"except {ast.unparse(node.type)}" if node.type else "except:")

    def _statement(self, call: ast.Call) -> None:
        """A call whose value is thrown away."""
        full = self._name(call.func)
        is_loop = isinstance(call.func, ast.Attribute) and call.func.attr == "create_task"
        if full in MAKES_TASK or (is_loop and ast.unparse(call.func.value) in LOOPS):  # type: ignore[attr-defined]  # is_loop says so
            self._report("ES009", call, f"{_shown(call.func)}(…)")
            return
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        nested = self.nested.get(name)
        found = self.walk.find(self.module, full) if full else None
        function = nested or (found[1] if found else None)
        if isinstance(function, ast.AsyncFunctionDef):
            self._report("ES010", call, f"{_shown(call.func)}(…)")

    def _report(self, code: str, node: ast.AST, what: str) -> None:
        lines = {getattr(node, "lineno", 0)}
        above: ast.AST | None = node
        while above is not None and not isinstance(above, ast.stmt):
            above = self.parents.get(above)
        lines.add(getattr(above, "lineno", 0))
        self.walk.report(self.place, code, node, what, lines)


def _within(place: "Reached", function: Function) -> "Reached":
    kind = type(place)
    return kind(place.module, function, f"{place.trail} → {function.name}", place.owner, place)


def _plain_nodes(function: Function) -> Iterator[ast.AST]:
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, Function):
            stack.extend(ast.iter_child_nodes(node))


def _bound(function: Function, nodes: list[ast.AST]) -> frozenset[str]:
    """Names that are local to a function; imports keep their meaning."""
    a = function.args
    names = {arg.arg for arg in [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, [a.vararg, a.kwarg])]}
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, Function | ast.ClassDef | ast.ExceptHandler):
            names.add(node.name or "")
    return frozenset(names)


def _sets(nodes: list[ast.AST], module: Module) -> frozenset[str]:
    """Local names that only ever hold a set."""
    values: dict[str, list[bool]] = {}
    found: frozenset[str] = frozenset()
    for _ in range(2):  # names may stand for one another once
        values.clear()
        for node in nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    for name in ast.walk(target):
                        if isinstance(name, ast.Name):
                            values.setdefault(name.id, []).append(target is name and _is_set(node.value, module, found))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                values.setdefault(node.target.id, []).append(_is_set(node.value, module, found))
            elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
                for name in ast.walk(node.target):
                    if isinstance(name, ast.Name):
                        values.setdefault(name.id, []).append(False)
        found = frozenset(name for name, kinds in values.items() if all(kinds))
    return found


def _is_set(value: ast.AST | None, module: Module, sets: frozenset[str]) -> bool:
    """Whether an expression is a set whose order is not its author's: not of tasks, which the loop puts in order, nor of small
    numbers."""
    match value:
        case ast.Set(elts=elements):
            found = not all(_keeps_order(e, module) for e in elements)
        case ast.SetComp(elt=element):
            found = not _keeps_order(element, module)
        case ast.Name(id=name):
            found = name in sets
        case ast.Call(func=ast.Name(id="set" | "frozenset"), args=[_, *_]):
            found = True
        case ast.Call(func=ast.Attribute(value=owner, attr=attr)):
            found = attr in _SET_METHODS and _is_set(owner, module, sets)
        case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
            found = _is_set(left, module, sets) or _is_set(right, module, sets)
        case _:
            found = False
    return found


_SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})


def _keeps_order(element: ast.expr, module: Module) -> bool:
    if isinstance(element, ast.Constant):
        return isinstance(element.value, int)
    if not isinstance(element, ast.Call):
        return False
    made = module.full_name(element.func) in MAKES_TASK
    return made or (isinstance(element.func, ast.Attribute) and element.func.attr == "create_task")


def _shown(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
