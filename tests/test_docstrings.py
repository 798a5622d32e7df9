"""Every public name says what it is and what it raises; of which shapes, its readers see to."""

import ast
import builtins
import re

import pytest
from series import ROOT

MODULES = sorted((ROOT / "nanogpt").rglob("[a-z]*.py"))


def public(body, owner=None):
    """Each public class and function as (name, node, the docstring that speaks for it)."""
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            continue
        name = f"{owner.name}.{node.name}" if owner else node.name
        if node.name in ("__init__", "__post_init__"):  # the class's docstring speaks for it
            yield name, node, ast.get_docstring(owner)
        elif not node.name.startswith("_"):
            yield name, node, ast.get_docstring(node)
            if isinstance(node, ast.ClassDef):
                yield from public(node.body, node)


def raised(node):
    """The exceptions that a function's own `raise` statements name."""
    for statement in ast.walk(node):
        if isinstance(statement, ast.Raise) and isinstance(statement.exc, ast.Call):
            yield statement.exc.func.id


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_public_name_has_a_docstring_that_says_what_it_raises(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "the module has no docstring"
    for name, node, text in public(tree.body):
        assert text, f"{name} has no docstring"
        if isinstance(node, ast.FunctionDef):
            named = re.findall(r"\w+(?:Error|Exit|Interrupt)", text)
            said = [getattr(builtins, word) for word in named]
            for error in raised(node):
                if not hasattr(builtins, error):  # one of our own, by its name
                    assert error in text, f"{name} raises {error}; its docstring does not say so"
                    continue
                known = [issubclass(getattr(builtins, error), parent) for parent in said]
                assert any(known), f"{name} raises {error}, and its docstring does not say so"
