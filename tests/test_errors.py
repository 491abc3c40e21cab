"""The tree of errors, as it is written and as it is."""

import ast
import re
from pathlib import Path

import dovetail
from dovetail import errors

BRANCH = re.compile(r"^ {4}(?P<indent>[│ ]*)(?:[├└]── )?(?P<name>[A-Z]\w+) ", re.MULTILINE)


def written() -> dict[str, str]:
    """Return the parent of every error in the docstring; a level is four columns."""
    above: list[str] = []
    parents = {}
    for match in BRANCH.finditer(str(errors.__doc__)):
        depth = (match.start("name") - match.start()) // 4 - 1
        above[depth:] = [match["name"]]
        if depth:
            parents[match["name"]] = above[depth - 1]
    return parents


def real() -> dict[str, str]:
    """Return the parent of every class in the package that comes from DovetailError."""
    bases = {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for path in Path(dovetail.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    known = {"DovetailError"}
    parents: dict[str, str] = {}
    while new := {name: base for name, own in bases.items() for base in own if base in known and name not in parents}:
        parents |= new
        known |= new.keys()
    return parents


def test_the_tree_in_the_docstring_is_the_tree_of_classes():
    tree = written()

    assert tree["NoPlanError"] == "PlanError"
    assert tree == real()
