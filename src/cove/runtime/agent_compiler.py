"""Compile the agent for the Python that runs this, which is the sandbox's: each SOURCE becomes a .pyc and is removed.

Docstrings, asserts and annotations are left out. They would be loaded whenever a sandbox or an errand starts, and
annotations would need modules that take longer to load than all of the agent. Line numbers stay what they are.
"""

import ast
import importlib.util
import marshal
import os
import sys


class Strip(ast.NodeTransformer):
    """Remove what only a type checker reads."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if node.module == "__future__" else node


def compile_in_place(source: str) -> None:
    """Replace a source by what an import takes where there is none: importlib.machinery.SourcelessFileLoader."""
    with open(source, "rb") as file:
        tree = Strip().visit(ast.parse(file.read()))
    code = compile(tree, "cove/" + source, "exec", dont_inherit=True, optimize=2)
    with open(source + "c", "wb") as file:
        file.write(importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code))
    os.unlink(source)


if __name__ == "__main__":
    for each in sys.argv[1:]:
        compile_in_place(each)
