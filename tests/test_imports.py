"""Imports go one way, those inside functions and under TYPE_CHECKING counted too."""

import ast
from pathlib import Path

import dovetail

ROOT = Path(dovetail.__file__).parent


def module_files() -> dict[str, Path]:
    """Return every module of the package by its dotted name."""
    files = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ["dovetail", *path.relative_to(ROOT).with_suffix("").parts]
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imports_in(name: str, source: str, known: dict[str, Path]) -> set[str]:
    """Return the modules that a module imports anywhere; `from package import module` is the module alone."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {
                inner if (inner := f"{node.module}.{alias.name}") in known else node.module for alias in node.names
            }
    return (found & known.keys()) - {name}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan, 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in order:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], order[other])
        if lowest[module] == order[module]:
            start = stack.index(module)
            if len(stack) - start > 1:
                found.append(sorted(stack[start:]))
            del stack[start:]

    for module in sorted(graph):
        if module not in order:
            visit(module)
    return found


def import_graph() -> dict[str, set[str]]:
    """Return what every module of the package imports of it."""
    files = module_files()
    return {name: imports_in(name, path.read_text(), files) for name, path in files.items()}


def told(circle: list[str], graph: dict[str, set[str]]) -> str:
    """Return a circle as one line a module: what it imports of the others."""
    return "\n".join(f"  {module} imports {', '.join(sorted(graph[module] & set(circle)))}" for module in circle)


def test_no_modules_import_each_other_in_a_circle():
    graph = import_graph()
    found = [told(circle, graph) for circle in circles(graph)]

    assert not found, f"{len(found)} circles of imports:\n" + "\n\n".join(found)


def test_imports_inside_functions_and_for_type_checking_count():
    known = dict.fromkeys(("p", "p.a", "p.b", "p.c", "p.d"), Path())
    source = """
import p.a
if TYPE_CHECKING:
    from p.b import B
def later():
    from p import c, something
"""

    assert imports_in("p.d", source, known) == {"p", "p.a", "p.b", "p.c"}


def test_a_circle_is_found_with_all_its_modules_and_a_chain_is_none():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"a"}}

    assert circles(graph) == [["a", "b", "c"]]
