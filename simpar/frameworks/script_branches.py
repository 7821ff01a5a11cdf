"""Branches of a script that run: those of conditions that its code decides; others are told where they matter."""

import ast
from collections.abc import Callable
from typing import Any

CONDITION = "a condition of the code"
OF_BRANCHES = {CONDITION: "which branch runs, as only running tells, of those that say what is trained, and how"}
"""What the word that stands for such conditions could change."""


def branches_of(
    tree: ast.Module, truth: Callable[[ast.expr], bool | None], matters: Callable[[ast.AST], bool]
) -> tuple[ast.Module, str]:
    """A file without the branches that do not run, and the first condition that only running decides; "" for none.

    ``truth`` tells whether a condition holds, ``matters`` whether a part of the file decides what is trained, or how.
    """
    pruner = _Pruner(truth, matters)
    return pruner.visit(tree), pruner.untold


class _Pruner(ast.NodeTransformer):
    def __init__(self, truth: Callable[[ast.expr], bool | None], matters: Callable[[ast.AST], bool]) -> None:
        self.truth, self.matters = truth, matters
        self.untold = ""

    def visit_If(self, node: ast.If) -> Any:
        """The branch that runs, or both."""
        self._decide(node, [*node.body, *node.orelse])
        runs = self.truth(node.test)
        if runs is None:
            return self.generic_visit(node)
        kept = [self.visit(each) for each in (node.body if runs else node.orelse)]
        return [each for part in kept for each in (part if isinstance(part, list) else [part])] or ast.Pass(
            lineno=node.lineno, col_offset=0, end_lineno=node.lineno)  # fmt: skip

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        """The value that is taken, or both."""
        self._decide(node, [node.body, node.orelse])
        runs = self.truth(node.test)
        return self.generic_visit(node) if runs is None else self.visit(node.body if runs else node.orelse)

    def _decide(self, node: ast.If | ast.IfExp, parts: list[Any]) -> None:
        if not self.untold and self.truth(node.test) is None and any(map(self.matters, parts)):
            self.untold = ast.unparse(node.test)[:60]
