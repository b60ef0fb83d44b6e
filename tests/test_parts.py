"""The book as a whole: what a part may refer to."""
import ast
import builtins
import re
import symtable

import kshipra


def defined(node):
    """Return the names that a statement at top level defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {name.id for target in targets if target is not None for name in ast.walk(target)
            if isinstance(name, ast.Name)}


def global_names(table):
    """Yield the names of a scope, and of those in it, that only the module can define."""
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (symbol.is_global() or table.get_type() == "module"):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from global_names(inner)


def test_every_name_is_defined():
    """Also those that only a large model, another system or a rare error asks for."""
    with open(kshipra.__file__, encoding="utf-8") as f:
        source = f.read()
    used = set(global_names(symtable.symtable(source, "kshipra.py", "exec")))
    assert {name for name in used if not hasattr(kshipra, name) and not hasattr(builtins, name)} \
        == set()


def test_part_one_refers_to_nothing_of_the_later_parts():
    """So a reader has the whole engine in plain Python before any machine code."""
    with open(kshipra.__file__, encoding="utf-8") as f:
        source = f.read()
    start = source.index("\n# Part II.")
    early, late = source[:start], source[start:]
    here, there = ({name for node in ast.parse(part).body for name in defined(node)}
                   for part in (early, late))
    assert {"forward", "Engine", "Sampler"} <= here and {"Builder", "Native", "load"} <= there
    used = set(global_names(symtable.symtable(early, "part I", "exec")))
    assert {"Reference", "mmap"} <= used and used & (there - here) == set()


def test_a_name_with_an_underscore_is_used_in_its_own_chapter_alone():
    with open(kshipra.__file__, encoding="utf-8") as f:
        chapters = re.split(r"^# -+\n# (?=\d+\. )", f.read(), flags=re.M)
    assert len(chapters) > 20
    homes = {}                          # in the front matter and the parts' openers there are none
    for number, chapter in enumerate(chapters):
        for node in ast.parse("# " * bool(number) + chapter).body:
            homes.update({name: number for name in defined(node)
                          if name.startswith("_") and not name.startswith("__")})
    assert len(homes) > 100
    for number, chapter in enumerate(chapters):
        table = symtable.symtable("# " * bool(number) + chapter, "chapter", "exec")
        strangers = {name for name in global_names(table) if homes.get(name, number) != number}
        assert not strangers, (chapter[:30], strangers)
