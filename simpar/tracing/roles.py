"""Which products of a block are column- and row-parallel in attention and MLP: by data flow, not by names."""

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import field, replace

from simpar.architectures.graph import Size, term
from simpar.dataclass import dataclass
from simpar.tracing.choice_roles import choice_roles, loss_roles, with_losses
from simpar.tracing.compressed_roles import by_token, grouped_outputs, shared_key_roles
from simpar.tracing.expert_roles import mixture_roles, shared_last, without_shared_gate
from simpar.tracing.hyper_roles import hyper_connections
from simpar.tracing.latent_roles import LATENT_KEY, latent_roles, latents
from simpar.tracing.paths import behind_draft, path_to, readers_of
from simpar.tracing.raw_operators import INPUT_VALUE, Core, OperatorDraft, makers, merge_drafts
from simpar.tracing.recurrence_roles import recurrence_roles, recurrences, short_convolution_roles
from simpar.tracing.stream_roles import mixed_streams, stream_roles
from simpar.tracing.vocabulary import CONVOLUTION

HEAD_DIM = ("head_dim",)


@dataclass
class Roles:
    """Names and sizes of a block's drafts, its own dims, and why it cannot be tensor-parallel ("" where it can).

    ``covers`` maps a product in front of attention to the draft after it (rotation, norm) that attention reads instead.
    ``arrives`` is the output of the block before, ``keys_as_values`` are attentions with one product for both.
    """

    drafts: list[OperatorDraft]
    arrives: str = ""
    keys_as_values: Set[str] = frozenset()
    names: dict[str, str] = field(default_factory=dict)
    columns: dict[str, Size] = field(default_factory=dict)
    rows: dict[str, Size] = field(default_factory=dict)
    contractions: dict[str, Size] = field(default_factory=dict)
    regions: dict[str, str] = field(default_factory=dict)
    inner: set[str] = field(default_factory=set)
    dims: dict[str, int] = field(default_factory=dict)
    covers: dict[str, str] = field(default_factory=dict)
    refusal: str = ""

    def name(self, draft: OperatorDraft, wanted: str) -> None:
        """Name a draft unless it has a name; a name already in use gets a number."""
        if draft.name in self.names:
            return
        taken = set(self.names.values())
        number, unique = 2, wanted
        while unique in taken:
            unique, number = f"{wanted}_{number}", number + 1
        self.names[draft.name] = unique


def find_roles(
    drafts: Sequence[OperatorDraft],
    memory: str,
    output: str = "",
    live: Set[str] = frozenset(),
    arrives: str = INPUT_VALUE,
) -> Roles:
    """Recognise attention branches and MLPs of one block.

    ``memory`` is a value from another tower, ``output`` the model's output projection, which ends no MLP, ``live`` are
    values that other blocks read, ``arrives`` is the output of the block before.
    """
    connected, named = hyper_connections(by_token(grouped_outputs(list(drafts))))
    streams, mixing = mixed_streams(connected)
    plain, passes = recurrences(_summed(streams, live))
    turned = _scaled(_turned(plain))
    joined, compressed = latents(without_shared_gate(_joined(turned)))
    joined = with_losses(joined)
    roles = Roles(joined, arrives, _keys_as_values(turned))
    made = dict(makers(joined))
    stream_roles(roles, named | mixing)
    mixture_roles(roles, made)
    for layer in passes:
        recurrence_roles(roles, layer)
    for draft in joined:
        if draft.kind == CONVOLUTION and draft.name not in roles.names:
            short_convolution_roles(roles, draft)
    for each in compressed:
        latent_roles(roles, each)
    choice_roles(roles, made)
    loss_roles(roles, LATENT_KEY if compressed else term(*HEAD_DIM))
    shared = shared_key_roles(roles, made)
    ends = {each.core.name: each.end for each in compressed}
    for draft in joined:
        if draft.name in ends:
            _output(roles, made, made[ends[draft.name]], prefix="")
        elif draft.core is not None and draft.name not in shared:
            _attention(roles, made, draft, memory)
    for draft in joined:
        if draft.kind in ("activation", "gated_activation") and draft.name not in roles.names:
            _mlp(roles, made, draft, output)
    roles.drafts = shared_last(roles)
    _norms_and_sums(roles, made)
    return roles


def _summed(drafts: list[OperatorDraft], live: Set[str]) -> list[OperatorDraft]:
    """The drafts with nested sums (of parallel branches) as one, where no other draft reads the inner sum.

    Of two inner sums the first joins. ``live`` are values that other blocks read.
    """
    readers = Counter(value for draft in drafts for value in draft.inputs)
    result: dict[str, OperatorDraft] = {}
    for draft in drafts:
        made = makers(list(result.values()))
        inner = [made[value] for value in draft.inputs if value in made and _is_sum(made[value])]
        passing = [each for each in inner if readers[each.outputs[-1]] == 1 and not live & {*each.outputs}]
        if _is_sum(draft) and passing:
            first = passing[0]
            del result[first.name]
            own = (value for value in draft.inputs if value not in first.outputs)
            inputs = tuple(dict.fromkeys((*first.inputs, *own)))
            draft = replace(draft, inputs=inputs, outputs=(*first.outputs, *draft.outputs))
        result[draft.name] = draft
    return list(result.values())


def _turned(drafts: list[OperatorDraft]) -> list[OperatorDraft]:
    """The drafts with one rotation in place of a concatenation of separately rotated parts of one tensor."""
    result: dict[str, OperatorDraft] = {}
    for draft in drafts:
        made = makers(list(result.values()))
        parts = [made[v] for v in draft.inputs if v in made and made[v].kind == "rope"]
        sources = {value for part in parts for value in part.inputs}
        rest = {*draft.inputs} - {value for part in parts for value in part.outputs}
        if draft.kind == "copy" and len(sources) == 1 and rest <= sources:
            result = {name: each for name, each in result.items() if each not in parts}
            draft = replace(draft, kind="rope", inputs=tuple(sources))
        result[draft.name] = draft
    return list(result.values())


def _scaled(drafts: list[OperatorDraft]) -> list[OperatorDraft]:
    """The drafts, norms without a weight with the parameter that multiplies what only that product reads."""
    readers = Counter(value for draft in drafts for value in draft.inputs)
    result: dict[str, OperatorDraft] = {}
    for draft in drafts:
        made = makers(list(result.values()))
        norm = made.get(draft.inputs[0]) if draft.kind == "activation" and len(draft.inputs) == 1 else None
        plain = norm is not None and norm.kind == "norm" and not norm.pieces and readers[draft.inputs[0]] == 1
        if norm is not None and plain and sum(each.numel for each in draft.pieces) == norm.columns:
            pieces = tuple(replace(each, kind="vector") for each in draft.pieces)
            del result[norm.name]
            draft = replace(norm, outputs=(*norm.outputs, *draft.outputs), pieces=pieces)
        result[draft.name] = draft
    return list(result.values())


def _keys_as_values(drafts: list[OperatorDraft]) -> Set[str]:
    """Attentions whose keys and values come from one product that is as wide as one of them."""
    made = dict(makers(drafts))
    result = set()
    for draft in drafts:
        if draft.core is None:
            continue
        paths = [[*path_to(value, made)] for value in draft.inputs]
        products = {path[-1].name: path[-1].columns for path in paths if path and path[-1].kind == "matmul"}
        if [*products.values()][1:] == [draft.core.kv_heads * draft.core.key_dim]:
            result.add(draft.name)
    return result


def _is_sum(draft: OperatorDraft) -> bool:
    return draft.kind == "add" and len(draft.inputs) > 1 and not draft.pieces


def _joined(drafts: list[OperatorDraft]) -> list[OperatorDraft]:
    """The drafts with products on one tensor for one attention or one gate merged, and their rotations likewise.

    The product of a gate on an attention's output is one of them.
    """
    made = dict(makers(drafts))
    groups: dict[tuple[str, str, str], list[str]] = {}
    for draft in drafts:
        if draft.core is None and draft.kind not in ("gated_activation", "clamp"):
            continue
        gates = _gates(drafts, draft) if draft.core is not None else ()
        for value in (*draft.inputs, *gates):
            path = list(path_to(value, made))
            product = path[-1] if path and path[-1].kind == "matmul" else None
            if product is None:
                continue
            for each in path if value in draft.inputs else (product,):
                group = groups.setdefault((draft.name, each.kind, product.inputs[0]), [])
                if each.name not in group:
                    group.append(each.name)
    order = {draft.name: at for at, draft in enumerate(drafts)}
    several = [sorted(group, key=order.__getitem__) for group in groups.values() if len(group) > 1]
    return merge_drafts(drafts, several)


def _gates(drafts: list[OperatorDraft], attention: OperatorDraft) -> tuple[str, ...]:
    """What multiplies the output of an attention that nothing else reads."""
    readers = [each for each in drafts if {*attention.outputs} & {*each.inputs}]
    if len(readers) != 1 or not readers[0].kind.endswith("activation"):
        return ()
    return tuple(value for value in readers[0].inputs if value not in attention.outputs)


def _widths(core: Core) -> tuple[Size, Size, Size]:
    """Columns of queries, keys and values in heads and head widths."""
    same = core.key_dim == core.value_dim
    key = (1, HEAD_DIM) if same else (core.key_dim, ())
    value = (1, HEAD_DIM) if same else (core.value_dim, ())
    return (((key[0], ("heads", *key[1])),), ((key[0], ("kv_heads", *key[1])),), ((value[0], ("kv_heads", *value[1])),))


def add_sizes(*sizes: Size) -> Size:
    """The sum of polynomials."""
    terms: dict[tuple[str, ...], int] = {}
    for size in sizes:
        for coefficient, names in size:
            terms[names] = terms.get(names, 0) + coefficient
    return tuple((value, names) for names, value in terms.items())


def _attention(roles: Roles, made: dict[str, OperatorDraft], draft: OperatorDraft, memory: str) -> None:
    core = draft.core
    assert core is not None, "called for core attention"
    # Behind each input of core attention lies a path of norms, rotations and copies that ends in a product. The columns
    # of a product are shared out: q = heads x key_dim, k = kv_heads x key_dim, v = kv_heads x value_dim; one product of
    # all is "qkv", one of k and v "kv". Cross attention reads keys and values of another sequence, the memory. A layer
    # that shares the keys and values of an earlier one has a product of queries alone.
    paths = [list(path_to(source, made)) for source in draft.inputs]
    products = {path[-1].name: path[-1] for path in paths if path and path[-1].kind == "matmul"}
    shared = draft.name in roles.keys_as_values
    kv_heads = core.kv_heads if shared else _kv_heads(core, list(products.values()))
    sizes = {"heads": core.heads, "kv_heads": kv_heads, "head_dim": core.key_dim}
    if any(roles.dims.get(name, size) != size for name, size in sizes.items()):
        roles.refusal = "attentions of several shapes"
    roles.dims = {**sizes, **roles.dims}
    query, key, value = _widths(core)
    crosses = bool(memory) and any(memory in product.inputs for product in products.values())
    prefix = "cross_" if crosses else ""
    passing: dict[str, Size] = {}
    wanted = _shares(paths, (query, key, value))
    if len(wanted) == 1 and _reads_earlier_keys(roles, made, draft):
        wanted = dict.fromkeys(wanted, query)
    for name, columns in wanted.items():
        whole = add_sizes(query, key) if shared else columns
        for gate in (query, term("heads")):  # a head's query beside its gate, of every feature or of the whole head
            if "heads" in columns[0][1] and products[name].columns == _value((*columns, *gate), sizes):
                whole = add_sizes(columns, gate)
        if _value(whole, sizes) != products[name].columns:
            roles.refusal = roles.refusal or "an attention whose queries, keys and values are no plain products"
            continue
        roles.columns[name] = whole
        passing[name] = columns
        kind = "qkv" if len(wanted) == 1 else "q" if "heads" in columns[0][1] else "kv"
        roles.name(products[name], prefix + kind)
    if not wanted:
        roles.refusal = roles.refusal or "an attention whose queries, keys and values are no plain products"
    for path in paths:
        for each in path[:-1]:
            roles.inner.add(each.name)
            if path[-1].name in passing:  # columns that are neither rotated nor normed pass through
                roles.columns[each.name] = passing[path[-1].name]
                roles.rows[each.name] = path[-1].rows
                for before in path[1:]:
                    roles.covers.setdefault(before.name, path[0].name)
            roles.name(each, prefix + {"norm": "qk_norm"}.get(each.kind, each.kind))
    roles.name(draft, f"{prefix}attention")
    roles.columns[draft.name] = query if core.key_dim == core.value_dim else ((core.value_dim, ("heads",)),)
    _output(roles, made, draft, prefix=prefix)


def _reads_earlier_keys(roles: Roles, made: dict[str, OperatorDraft], draft: OperatorDraft) -> bool:
    """Whether an attention reads what a layer before the last one has made."""
    assert draft.core is not None, "called for core attention"
    here = (roles.arrives, INPUT_VALUE, draft.core.chosen)
    return any(value not in made and value not in here for value in draft.inputs)


def _output(roles: Roles, made: dict[str, OperatorDraft], draft: OperatorDraft, *, prefix: str) -> None:
    """Name the output projection after an attention, and the drafts between, a gate among them."""
    between, product = behind_draft(roles.drafts, made, draft)
    if product is None and (gate := _gate(roles, made, between[-1] if between else draft)) is not None:
        path, gated = gate
        _name_gate(roles, path, roles.columns[draft.name], draft.columns, prefix)
        more, product = behind_draft(roles.drafts, made, gated)
        between += [gated, *more]
    if product is None or product.contraction != draft.columns:
        roles.refusal = roles.refusal or "an attention without an output projection"
        return
    for each in between:
        roles.inner.add(each.name)
        roles.columns[each.name], roles.rows[each.name] = roles.columns[draft.name], draft.rows
    roles.contractions[product.name] = roles.columns[draft.name]
    roles.name(product, f"{prefix}o_proj")


def _gate(
    roles: Roles, made: dict[str, OperatorDraft], draft: OperatorDraft
) -> tuple[list[OperatorDraft], OperatorDraft] | None:
    """Where the only reader of a draft multiplies it with an activated product: the path to that product, the reader.

    Gated attention [Qiu et al. 2025, arXiv 2505.06708].
    """
    readers = readers_of(roles.drafts, draft)
    others = [value for value in readers[0].inputs if value not in draft.outputs] if len(readers) == 1 else []
    if len(others) != 1 or not readers[0].kind.endswith("activation"):
        return None
    path = list(path_to(others[0], made))
    return (path, readers[0]) if path and path[-1].kind == "matmul" else None


def _name_gate(roles: Roles, path: list[OperatorDraft], columns: Size, width: int, prefix: str) -> None:
    """Name the product of an attention's gate, as wide as its output or one column a head, and the drafts behind it."""
    product = path[-1]
    sizes = {width: columns, roles.dims["heads"]: term("heads")}
    if product.name not in roles.columns and product.columns in sizes:
        for each in path:
            roles.columns[each.name] = sizes[product.columns]
            roles.inner.add(each.name)
        roles.name(product, f"{prefix}gate")


def _kv_heads(core: Core, products: list[OperatorDraft]) -> int:
    """Key-value heads; copies made after a fused product are not counted.

    Its columns are (heads + 2 kv_heads) head_dim, from which kv_heads follows.
    """
    if len(products) != 1 or core.key_dim != core.value_dim:
        return core.kv_heads
    held, rest = divmod(products[0].columns - core.heads * core.key_dim, 2 * core.key_dim)
    return held if not rest and 0 < held < core.kv_heads and core.heads % held == 0 else core.kv_heads


def _shares(paths: list[list[OperatorDraft]], widths: tuple[Size, Size, Size]) -> dict[str, Size]:
    """Columns of each product in front of an attention, by its name; empty where they cannot be told."""
    products = [path[-1].name for path in paths if path and path[-1].kind == "matmul"]
    distinct = list(dict.fromkeys(products))
    query, key, value = widths
    if len(distinct) == 1:
        return {distinct[0]: add_sizes(query, key, value)}
    if len(distinct) == 2:
        return {distinct[0]: query, distinct[1]: add_sizes(key, value)}
    return dict(zip(distinct, (query, key, value), strict=False)) if len(distinct) == 3 else {}


def _value(size: Size, dims: dict[str, int]) -> int:
    total = 0
    for coefficient, names in size:
        for name in names:
            coefficient *= dims[name]
        total += coefficient
    return total


def _mlp(roles: Roles, made: dict[str, OperatorDraft], draft: OperatorDraft, output: str) -> None:
    """Name an MLP: a product, an activation, and a product that contracts its columns; limits before the activation."""
    sources = {made[value].name if value in made else "" for value in draft.inputs}
    if len(sources) != 1 or "" in sources:
        return
    first = made[draft.inputs[0]]
    limit = first if first.kind == "clamp" and first.inputs[0] in made else None
    up, reader = (made[limit.inputs[0]], limit) if limit else (first, draft)
    between, down = behind_draft(roles.drafts, made, draft)
    plain = up.kind == "matmul" and up.name not in roles.names and readers_of(roles.drafts, up) == [reader]
    if not plain or down is None or down.contraction != draft.columns or up.columns % draft.columns:
        return
    shared = any(each.kind == "router" for each in roles.drafts)
    ffn, prefix = ("shared_ffn", "shared") if shared else ("ffn", "mlp")
    if down.name == output or roles.dims.get(ffn, draft.columns) != draft.columns or down.name in roles.contractions:
        return
    roles.dims[ffn] = draft.columns
    roles.columns[up.name] = term(ffn, times=up.columns // draft.columns)
    roles.columns[draft.name] = roles.contractions[down.name] = term(ffn)
    roles.inner.add(draft.name)
    for each in between:
        roles.inner.add(each.name)
        roles.columns[each.name] = term(ffn)
    if limit is not None:
        roles.inner.add(limit.name)
        roles.columns[limit.name] = term(ffn, times=limit.columns // draft.columns)
        roles.name(limit, f"{prefix}_clamp")
    activation = "shared_activation" if shared else "activation"
    for each, name in ((up, f"{prefix}_up"), (draft, activation), (down, f"{prefix}_down")):
        roles.name(each, name)


def _norms_and_sums(roles: Roles, made: dict[str, OperatorDraft]) -> None:
    """Name the norms and residual sums around the branches."""
    branch = {
        "qkv": "attention",
        "in_proj": "attention",
        "q": "attention",
        "cross_q": "cross",
        "mlp_up": "mlp",
        "router": "mlp",
    }
    ends = {
        "o_proj": "attention",
        "out_proj": "attention",
        "cross_o_proj": "cross",
        "mlp_down": "mlp",
        "combine": "mlp",
        "shared_down": "mlp",
    }
    for draft in roles.drafts:
        read_by = {roles.names.get(reader.name, "") for reader in readers_of(roles.drafts, draft)}
        behind = {roles.names.get(d.name, "") for v in draft.inputs for d in path_to(v, made)}
        if draft.kind == "norm" and (readers := [branch[name] for name in read_by if name in branch]):
            roles.name(draft, f"{min(readers)}_norm")
        if draft.kind == "add" and len(draft.inputs) > 1:
            readers = [ends[name] for name in behind if name in ends]
            roles.name(draft, f"{min(readers)}_residual" if readers else "residual")
