"""Tables of positions that end before a sequence does: reading beyond them fails in training, and nowhere on meta."""

from collections.abc import Mapping, Sequence
from typing import Any

from simpar.errors import UserError
from simpar.tracing.masks import Constants
from simpar.tracing.nodes import CONSTANT, INDEX, CallNode, Ref, TracedCall, refs_of

STATED = ("max_position_embeddings", "n_positions", "max_target_positions")
"""What configs of transformers call the length of a table of positions."""


def positions_of(module: Any) -> int | None:
    """The positions that a module's config states; None where it has none."""
    config = getattr(module, "config", None)
    numbers = (getattr(config, name, None) for name in STATED)
    return next((each for each in numbers if isinstance(each, int)), None)


def check_tables(
    name: str, seq_len: int, calls: Sequence[TracedCall], nodes: Mapping[str, CallNode], constants: Constants
) -> None:
    """Raise UserError if numbers that are fixed, or follow from tokens alone, are beyond the rows that they read."""
    for call in calls:
        if call.op not in ("embedding", "index") or not isinstance(call.args[0], Ref):
            continue
        at = next(refs_of(call.args[1:2]), "")
        rows = nodes[call.args[0].name].sizes[0]
        if not at or nodes[at].kind not in (CONSTANT, INDEX) or nodes[at].op == "placeholder":
            continue
        wanted = constants.value(at)
        if wanted is not None and wanted.numel() and not wanted.is_floating_point() and int(wanted.max()) >= rows:
            raise UserError(
                f"seq_len = {seq_len}: {name} reads row {int(wanted.max())} of the {rows} in "
                f"{nodes[at].path or call.op}; allowed: as many positions or fewer"
            )
