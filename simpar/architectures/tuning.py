"""Fine-tuning of a part: low-rank adapters beside frozen weights, frozen layers, frozen weights in 8 or 4 bits.

An adapter of rank r beside a matrix of k inputs and n outputs is a product with k x r and one with r x n values [LoRA,
Hu et al. 2021, arXiv 2106.09685]. In a mixture every expert's projections have adapters of their own, in grouped
products, and so have those of shared experts; routers are frozen (PEFT beside every expert's Linear, NeMo AutoModel's
GroupedExpertsLoRA). Frozen weights have neither gradients nor states and no weight-gradient product, and their inputs
are not kept for one. Below the first trained layer nothing runs backward. Matrices inside layers may be stored in NF4,
with 4 bits and 0.127 bits of doubly quantised scales per element, and are then widened before every product [QLoRA,
Dettmers et al. 2023, arXiv 2305.14314, section 3], or in int8 with a scale per row, of which products are timed as
those of widened weights [LLM.int8, Dettmers et al. 2022, arXiv 2208.07339]; or in the 8 bits that 8-bit products read,
with one scale per tensor [NVIDIA Megatron-Bridge, llama2_70b_lora presets: "the base is stored quantized"].
"""

from dataclasses import replace

from simpar.architectures.graph import PRODUCTS, Block, ModelGraph, Operator, Size, Weight, is_row_parallel
from simpar.errors import UserError

TUNED = "tuned"
"""Key of the fact that a graph is tuned already."""
NF4_BYTES = (4.0 + 0.127) / 8.0
STORED_BYTES = {"bf16": None, "fp32": 4.0, "fp8": 1.0, "int8": 1.0, "nf4": NF4_BYTES}
"""Bytes per element of a frozen matrix by its dtype; None: those of the compute dtype."""
WIDENED = ("int8", "nf4")
"""Dtypes of frozen weights that products of any precision take, behind a pass that widens them."""
PARTS: dict[str, tuple[str, int]] = {
    "q_proj": ("qkv", -3), "k_proj": ("qkv", -2), "v_proj": ("qkv", -1), "o_proj": ("o_proj", -1),
    "gate_proj": ("mlp_up", -2), "up_proj": ("mlp_up", -1), "down_proj": ("mlp_down", -1),
}  # fmt: skip
"""For every projection, its packed product and its part of it, counted from the last (without a gate, up is alone)."""
CROSSED = {
    "q_proj": ("cross_q", -1), "k_proj": ("cross_kv", -2), "v_proj": ("cross_kv", -1), "o_proj": ("cross_o_proj", -1),
}  # fmt: skip
"""The same for attention to what another tower makes."""
PARTS_OF_TOWERS = {"tower": ("vision", "audio"), "connector": ("connector", "audio_connector")}
"""Scopes of the blocks that see or hear, and of those that join them to the others."""
MIXTURES = {"mlp_up": ("expert_up", "shared_up"), "mlp_down": ("expert_down", "shared_down")}
"""The products of a mixture that correspond to those of an MLP."""
LATENT = {"q_proj": ("q_down", "q_up"), "k_proj": ("kv_down", "kv_up"), "v_proj": ("kv_down", "kv_up")}
"""The products of latent attention that correspond to a projection; each has one adapter."""


def add_adapters(
    graph: ModelGraph,
    *,
    rank: int | None,
    targets: tuple[str, ...],
    frozen_layers: int,
    frozen_dtype: str,
    frozen_tower: bool = False,
    frozen_connector: bool = False,
) -> ModelGraph:
    """The model with adapters of ``rank`` beside the ``targets``, or (rank None) with its first layers frozen.

    ``frozen_tower`` and ``frozen_connector`` freeze the layers that see or hear, and what joins them to the others;
    beside adapters both are frozen anyway. An encoder is frozen with the layers before its decoder. Raises UserError
    for more frozen layers than there are, for a tower that the model does not have, and for a model without any of the
    targets.
    """
    asked = {"tower": frozen_tower, "connector": frozen_connector}
    missing = next((part for part, is_frozen in asked.items() if is_frozen and not _has_part(graph, part)), None)
    if missing:
        raise UserError(f"plan.frozen_{missing} = true: {graph.name} neither sees nor hears; allowed: false")
    if frozen_layers >= len(graph.layers):
        raise UserError(f"plan.frozen_layers = {frozen_layers}: the model has {len(graph.layers)}; allowed: fewer")
    if rank is None and (frozen_tower or frozen_connector):
        graph = _without_parts(graph, STORED_BYTES[frozen_dtype], tower=frozen_tower, connector=frozen_connector)
    if rank is None and not frozen_layers:
        return graph
    if rank is not None and not any(adapted_layers(graph, targets)[frozen_layers:]):
        own = [name for name in PARTS if any(adapted_layers(graph, (name,))[frozen_layers:])]
        raise UserError(
            f"plan.lora_targets = {', '.join(targets)}: {graph.name} has none of these products in layers that are not "
            f"frozen; allowed: {', '.join(own) or 'no lora_rank, for it has no product that adapters stand beside'}"
        )
    stored, first = STORED_BYTES[frozen_dtype], _first_trained(graph, rank, targets, frozen_layers)
    still = {name: _still(graph.blocks[name], stored) for name in graph.layers[:first]}
    blocks = dict(graph.blocks)
    if rank is not None:
        blocks = {name: _adapted(block, rank, targets, stored) for name, block in blocks.items()}
    blocks |= {block.name: block for block in still.values()}
    layers = (*(still[name].name for name in graph.layers[:first]), *graph.layers[first:])
    outer = stored if frozen_dtype == "fp32" else None  # fewer bits are those of layers
    head = graph.head if rank is None and not graph.tied_embeddings else _frozen(graph.head, outer)
    embedding = replace(_frozen(graph.embedding, outer), has_no_backward=True)
    facts = {**graph.facts, TUNED: True}
    return replace(graph, blocks=blocks, layers=layers, head=head, embedding=embedding, facts=facts)


def _has_part(graph: ModelGraph, part: str) -> bool:
    return any(block.scope in PARTS_OF_TOWERS[part] for block in graph.blocks.values())


def _without_parts(graph: ModelGraph, stored: float | None, *, tower: bool, connector: bool) -> ModelGraph:
    """The model with a frozen tower, through which no gradient passes, or a frozen connector.

    Through a connector gradients pass to a tower that is trained.
    """

    def frozen(block: Block) -> Block:
        if tower and block.scope in PARTS_OF_TOWERS["tower"]:
            return replace(_frozen(block, stored), has_no_backward=True)
        if connector and block.scope in PARTS_OF_TOWERS["connector"]:
            return replace(_frozen(block, stored), has_no_backward=tower)
        return block

    blocks = {name: frozen(block) for name, block in graph.blocks.items()}
    return replace(graph, blocks=blocks, facts={**graph.facts, TUNED: True})


def _first_trained(graph: ModelGraph, rank: int | None, targets: tuple[str, ...], frozen_layers: int) -> int:
    """The number of the first layer with something trained, or (rank None) that is not frozen.

    It may be behind layers without a target (mixers of state spaces at the bottom of a hybrid), which are frozen as a
    whole: no gradient passes through them.
    """
    if rank is None:
        return frozen_layers
    return adapted_layers(graph, targets).index(True, frozen_layers)


def adapted_layers(graph: ModelGraph, targets: tuple[str, ...]) -> list[bool]:
    """Whether each layer has a product that is a target: mixers of state spaces, for one, have none."""
    adapted = {name: any(_columns(op, targets) for op in block.operators) for name, block in graph.blocks.items()}
    return [adapted[name] for name in graph.layers]


def _still(block: Block, stored: float | None) -> Block:
    """A frozen block below everything that is trained."""
    return replace(_frozen(block, stored), name=f"{block.name}.still", has_no_backward=True)


def _frozen(block: Block, stored: float | None = None) -> Block:
    return replace(block, operators=tuple(_frozen_operator(op, stored) for op in block.operators))


def _frozen_operator(op: Operator, stored: float | None) -> Operator:
    """The operator with frozen weights, for whose gradients it keeps no input."""
    weights = tuple(_frozen_weight(weight, stored) for weight in op.weights)
    saves = op.saves
    if op.weights and op.kind in PRODUCTS:
        saves = tuple(name for name in saves if name == op.name)  # a router keeps its logits
    return replace(op, weights=weights, saves=saves)


def _frozen_weight(weight: Weight, stored: float | None) -> Weight:
    holds = weight.is_matrix or stored == STORED_BYTES["fp32"]
    return replace(weight, trainable=False, stored_bytes=stored if holds else None)


def _adapted(block: Block, rank: int, targets: tuple[str, ...], stored: float | None) -> Block:
    """The block with frozen weights and an adapter behind every product that contains targets."""
    operators: list[Operator] = []
    for op in block.operators:
        operators.append(_frozen_operator(op, stored))
        columns = _columns(op, targets)
        if columns:
            operators += _adapter(op, rank, columns)
    return replace(block, operators=tuple(operators))


def _columns(op: Operator, targets: tuple[str, ...]) -> tuple[Size, ...]:
    """Output columns of the adapters beside a product: one for each of its parts that is a target."""
    if any(op.name in LATENT.get(name, ()) for name in targets):
        return (op.columns,)
    parts: list[Size] = [((1, names),) for times, names in op.columns for _ in range(times)]
    result = []
    for name in targets:
        packed, part = PARTS[name]
        crossed, its_part = CROSSED.get(name, ("", 0))
        if op.name in (packed, *MIXTURES.get(packed, ())) and -part <= len(parts):
            result.append(parts[part])
        elif op.name == crossed:
            result.append(parts[its_part])
    return tuple(result)


def _adapter(op: Operator, rank: int, columns: tuple[Size, ...]) -> list[Operator]:
    """Operators of an adapter: down to the rank, up again, sum with the frozen product; each expert has its own."""
    inner: Size = ((rank, ()),) * len(columns)
    each = ("experts",) if op.kind == "grouped_matmul" else ()
    kind, region = "expert" if each else "matrix", op.region
    kept = tuple(name for name in op.inputs[:1] if name in op.saves)  # what another tower makes is kept there
    down = tuple((times * rank * len(columns), (*each, *names)) for times, names in op.contraction)
    outputs: Size = tuple(term for size in columns for term in size)
    up = tuple((times * rank, (*each, *names)) for times, names in outputs)
    first, second = f"{op.name}.lora_a", f"{op.name}.lora_b"
    return [
        Operator(
            first, op.kind, op.rows, inner, region, contraction=op.contraction, weights=(Weight(first, down, kind),),
            inputs=op.inputs, saves=kept,
        ),
        Operator(
            second, op.kind, op.rows, outputs, region, contraction=((rank, ()),), weights=(Weight(second, up, kind),),
            inputs=(first,), saves=(first,),
        ),
        Operator(
            f"{op.name}.lora_add", "add", op.rows, op.columns, "sequence" if is_row_parallel(op) else region,
            inputs=(op.name, second),
        ),
    ]  # fmt: skip
