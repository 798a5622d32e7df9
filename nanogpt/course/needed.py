"""Which statements of a notebook a cell needs, found without running any of them.

The compiler says which names a statement reads and which it gives values to. From the names of a
cell, the search goes back to the statements that they come from, to the names that those read, and
so on. Plots, and experiments whose results nobody reads, are left out.

One thing is not seen: what a call does to its arguments, or to names that stand elsewhere. After
`train(model)`, the model that a cell gets is the untrained one.
"""

from __future__ import annotations

import ast
import dis
import inspect
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType

READS = {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"}
BINDS = {"STORE_NAME", "DELETE_NAME"}
COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
IN_ORDER = (ast.For, ast.With)  # what stands first in the text runs first
BLOCKS = (ast.If, ast.While, ast.Try, ast.Match, *IN_ORDER)
IMPORTS = (ast.Import, ast.ImportFrom)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
POSTPONED = annotations.compiler_flag  # as `from __future__ import annotations` does
SHELL = re.compile(r"(?m)^(\s*)[%!].*")  # Jupyter's own lines: magics, and commands of a shell


@dataclass(frozen=True)
class Statement:
    """A statement at the top of a cell, and what it does with the notebook's names.

    now: those it reads when it runs; later: those its functions read when somebody calls them;
    binds: those it gives a value; changes: those whose value it changes.
    """

    cell: int
    node: ast.stmt
    code: CodeType
    now: frozenset[str]
    later: frozenset[str]
    binds: frozenset[str]
    changes: frozenset[str]

    def settles(self, name: str) -> bool:
        """Whether nothing that stood before it matters to the name: it surely binds it anew."""
        return name in self.binds and not isinstance(self.node, BLOCKS + IMPORTS)


def parsed(source: str) -> list[ast.stmt]:
    """A cell's statements. Raises SyntaxError where it is no Python, ValueError at a null byte."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(source)
        except SyntaxError:
            tree = ast.parse(SHELL.sub(r"\1pass", source))
        compile(tree, "cell", "exec", dont_inherit=True)  # a `return` outside a function
    return tree.body


def statements(cells: dict[int, str]) -> list[Statement]:
    """All statements of a notebook's cells of code; a cell that is no Python has none."""
    nodes = []
    for number, source in cells.items():
        try:
            nodes += [(number, node) for node in parsed(source)]
        except (SyntaxError, ValueError):
            continue
    imports = {(number, name) for number, node in nodes for name in imported(node)}
    future = any(getattr(node, "module", "") == "__future__" for _, node in nodes)
    return [statement(number, node, imports, POSTPONED * future) for number, node in nodes]


def statement(cell: int, node: ast.stmt, imports: set[tuple[int, str]], flags: int) -> Statement:
    """A Statement; imports: (cell, name) of all that the notebook imports; flags: compile's."""
    code = compile(ast.Module([node], []), f"cell {cell}", "exec", flags, dont_inherit=True)
    now, later, binds = scan(code, hides=isinstance(node, IN_ORDER) or not isinstance(node, BLOCKS))
    # a call of a module's function changes the module in the cell that imports it: its settings
    modules = {name for _, name in imports}
    called = {name for name in calls(node) if name not in modules or (cell, name) in imports}
    sets = map(frozenset, (now, later, binds, parts(node) | called))
    return Statement(cell, node, code, *sets)


def imported(node: ast.stmt) -> list[str]:
    """The names that an import binds."""
    if not isinstance(node, IMPORTS):
        return []
    return [(alias.asname or alias.name).split(".")[0] for alias in node.names]


def scan(code: CodeType, hides: bool = True) -> tuple[set[str], set[str], set[str]]:
    """The global names that code reads when it runs, and in calls of its functions; what it binds.

    hides: a name that it binds, as a loop does its variable, is its own from there on.
    """
    now, later, binds = set(), set(), set()
    for step in dis.get_instructions(code):
        own = binds if hides else set()
        if step.opname in READS:
            now |= {step.argval} - own
        elif step.opname in BINDS:
            binds.add(step.argval)
        elif isinstance(step.argval, CodeType):
            inside, called, _ = scan(step.argval)
            seen = set() if in_class(code) else own  # a method does not see its class's names
            (later if is_function(step.argval) else now).update(inside - seen)
            later |= called - seen
    return now, later, binds


def is_function(code: CodeType) -> bool:
    """Whether code waits until it is called: neither a class's body nor a comprehension does."""
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and code.co_name not in COMPREHENSIONS


def in_class(code: CodeType) -> bool:
    """Whether it is the body of a class."""
    return not code.co_flags & inspect.CO_OPTIMIZED and code.co_name != "<module>"


def running(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a statement that run with it: not what waits in functions."""
    yield node
    if not isinstance(node, FUNCTIONS):
        for part in ast.iter_child_nodes(node):
            yield from running(part)


def root(node: ast.AST) -> str:
    """The name at the left end of `name.x[0].y(…)`, or nothing."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def parts(node: ast.stmt) -> set[str]:
    """The names of which it changes a part: `name.x = …`, `name[0] = …`, `@add_to(name)`."""
    places = [p for p in running(node) if isinstance(p, (ast.Attribute, ast.Subscript))]
    stored = [place for place in places if not isinstance(place.ctx, ast.Load)]
    decorators = [d for d in getattr(node, "decorator_list", []) if isinstance(d, ast.Call)]
    handed = [argument for decorator in decorators for argument in decorator.args]
    return {root(part) for part in stored + handed} - {""}


def calls(node: ast.stmt) -> set[str]:
    """The names whose methods it calls for nothing but their effect: `name.append(1)`."""
    alone = [part.value for part in running(node) if isinstance(part, ast.Expr)]
    methods = [c for c in alone if isinstance(c, ast.Call) and isinstance(c.func, ast.Attribute)]
    return {root(call) for call in methods} - {""}


def writers(before: Sequence[Statement], name: str) -> Iterator[int]:
    """From the last one back, the statements to which a name owes the value it has after all."""
    for i in reversed(range(len(before))):
        if name in before[i].binds | before[i].changes:
            yield i
            if before[i].settles(name):
                return


def needed(notebook: Sequence[Statement], cell: int) -> list[Statement]:
    """The statements of a cell, and those before it that it needs, in their order.

    A name has the value of the place where it is read. A function reads its names where it, or
    what holds it, is used.
    """
    seen, found = set(), [(i, i) for i, own in enumerate(notebook) if own.cell == cell]
    while found:
        i, used = found.pop()  # statement i, whose functions may be called in statement `used`
        if (i, used) not in seen:
            seen.add((i, used))
            found += owed(notebook, i, used)
    return [notebook[i] for i in sorted({i for i, _ in seen})]


def owed(notebook: Sequence[Statement], i: int, used: int) -> Iterator[tuple[int, int]]:
    """Where a statement's names come from: (statement, where its functions may be called)."""
    own = notebook[i]
    for name in own.now:
        for j in writers(notebook[:i], name):
            yield from ((j, i), (j, used))
    for moment in {used} if isinstance(own.node, DEFINITIONS) else {i, used}:
        for name in own.later:
            yield from ((j, moment) for j in writers(notebook[:moment], name))
