"""The book as a whole: what a part may refer to."""
import ast

import kshipra


def defined(node):
    """Return the names that a statement at top level defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return {name.id for name in ast.walk(node)
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
    return set()


def test_part_one_refers_to_nothing_of_the_later_parts():
    """So a reader has the whole engine in plain Python before any machine code."""
    with open(kshipra.__file__, encoding="utf-8") as f:
        source = f.read()
    starts = {part: source[:source.index(f"\n# Part {part}.")].count("\n") + 1
              for part in ("I", "II", "III")}
    early, late, used = set(), set(), {}
    for node in ast.parse(source).body:
        if node.lineno >= starts["II"]:
            late |= defined(node)
            continue
        early |= defined(node)
        for name in ast.walk(node):
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load):
                used.setdefault(name.id, name.lineno)
    assert len(early) > 100 and len(late) > 200
    assert {name: line for name, line in used.items() if name in late - early} == {}
