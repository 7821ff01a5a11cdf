"""Kernels of one process, timed: products, vector additions, optimizer updates, and every operator of a decoder.

Operators are the runtime's own modules, executed in a block's order, so that the timed code is the code that trains.
"""

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from simpar.architectures.graph import INPUT
from simpar.calibrate.request import CalibrationRequest, Sample, Walk
from simpar.calibrate.stopwatch import Stopwatch, Times
from simpar.plan.optimizers import DEFAULT_OPTIMIZER
from simpar.runtime.attention import Place
from simpar.runtime.decoder import BlockModule, Decoder, Part, Recompute
from simpar.runtime.loss import mean_loss
from simpar.runtime.model import fill
from simpar.runtime.operators import CastingLinear, TokenEmbedding
from simpar.runtime.update import BETAS, EPS

SIDES = {"cpu": 256, "cuda": 2048}
"""Rows and columns of the matrices that are updated, by device."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def kernels(request: CalibrationRequest, watch: Stopwatch) -> Iterator[Sample]:
    """All samples of one process working alone."""
    yield from products(request, watch)
    yield from streams(request, watch)
    yield from updates(request, watch)
    yield from gradients(request, watch)
    for number, walk in enumerate(request.walks):
        yield from operators(walk, number, watch, DTYPES[request.dtype])


def repeated(request: CalibrationRequest, watch: Stopwatch) -> list[float]:
    """Seconds of the largest product, to be timed again later."""
    most = max(request.products, key=prod)
    alone = request.model_copy(update={"products": (most,), "dtypes": (request.dtype,)})
    return [sample.seconds for sample in products(alone, watch)]


def products(request: CalibrationRequest, watch: Stopwatch) -> Iterator[Sample]:
    """Matrix products (m x k)(k x n) in every dtype."""
    for dtype in request.dtypes:
        for m, n, k in request.products:
            left = torch.randn(m, k, device=watch.device).to(DTYPES[dtype])
            right = torch.randn(n, k, device=watch.device).to(DTYPES[dtype])
            times = watch.time(partial(functional.linear, left, right))
            yield _sample(times, kind="product", name="product", shape=(m, n, k), dtype=dtype)


def streams(request: CalibrationRequest, watch: Stopwatch) -> Iterator[Sample]:
    """Two vectors added into a third; for the shortest, also the host time to issue it."""
    for count in request.streams:
        one, other = (torch.randn(count, device=watch.device) for _ in range(2))
        work = partial(torch.add, one, other)
        yield _sample(watch.time(work), kind="stream", name="add", shape=(count,))
        if count == min(request.streams):
            issued = Times(watch.issue_s(work), 0.0, 1)
            yield _sample(issued, kind="stream", name="issue", shape=(count,))


def updates(request: CalibrationRequest, watch: Stopwatch) -> Iterator[Sample]:
    """AdamW as in the runtime, on matrices of a model with the given numbers of parameters."""
    for count in request.parameters:
        side = SIDES[watch.device.type]
        matrices = [
            torch.nn.Parameter(torch.randn(side, side, device=watch.device)) for _ in range(max(count // side**2, 1))
        ]
        optimizer = torch.optim.AdamW(matrices, betas=BETAS, eps=EPS, fused=True)
        for matrix in matrices:
            matrix.grad = torch.randn_like(matrix)
        total = sum(matrix.numel() for matrix in matrices)
        yield _sample(watch.time(optimizer.step), kind="optimizer", name=DEFAULT_OPTIMIZER, shape=(total,))


def gradients(request: CalibrationRequest, watch: Stopwatch) -> Iterator[Sample]:
    """A gradient in the dtype of a product, widened to that of its parameter and added to the gradient sum."""
    for count in request.parameters if request.dtype != "fp32" else ():
        side = SIDES[watch.device.type]
        shape = max(count // side**2, 1), side, side
        narrow = torch.zeros(shape, device=watch.device, dtype=DTYPES[request.dtype])
        total = torch.zeros(shape, device=watch.device)

        def widen_and_add(narrow: Tensor = narrow, total: Tensor = total) -> None:
            total.add_(narrow.to(total.dtype))

        times = watch.time(widen_and_add)
        yield _sample(times, kind="gradient", name="sum", shape=(total.numel(),), dtype=request.dtype)


def operators(walk: Walk, number: int, watch: Stopwatch, dtype: torch.dtype) -> Iterator[Sample]:
    """Every operator of an embedding, a layer and a head: forward, and backward to inputs and weights.

    Weights of products have the compute dtype; the others are cast as in a run.
    """
    graph = walk.graph()
    part = Part(range(1), embedding=True, head=True)
    with torch.device("meta"):
        model = Decoder(graph, part, Place(), Recompute())
    model.to_empty(device=watch.device)
    model.tie()
    fill(model, 0)
    for module in model.modules():
        if isinstance(module, CastingLinear):
            module.to(dtype)
        elif isinstance(module, TokenEmbedding):
            module.compute_dtype = dtype
    tokens = torch.randint(graph.dims["vocab"], (walk.batch, walk.seq_len), device=watch.device)
    samples: list[Sample] = []
    x: Tensor = tokens
    for block in (model.embedding, *model.layers.values(), model.head):
        x = _walk(block, x, number, watch, samples)
    logits = x.detach().requires_grad_()
    samples += _both_ways(lambda: mean_loss(logits, tokens), [logits], "loss", number, watch)
    yield from samples


def _walk(block: BlockModule, x: Tensor, number: int, watch: Stopwatch, samples: list[Sample]) -> Tensor:
    """Time the operators of a block in order; returns the block's output."""
    values = {INPUT: x}
    for op in block.operators:
        module = getattr(block, op.name)
        inputs = [_leaf(values[name]) for name in op.inputs]
        leaves = [leaf for each in inputs for leaf in (each if isinstance(each, tuple) else (each,))]
        wanted = [leaf for leaf in (*leaves, *module.parameters()) if leaf.is_floating_point()]
        samples += _both_ways(partial(module, *inputs), wanted, op.name, number, watch)
        with torch.no_grad():
            values[op.name] = module(*inputs)
    return values[block.operators[-1].name]


def _leaf(value: Any) -> Any:
    """Tensors detached from their graph, which require a gradient if their dtype allows it."""
    if isinstance(value, tuple):
        return tuple(_leaf(each) for each in value)
    return value.detach().requires_grad_(value.is_floating_point())


def _both_ways(forward: Any, wanted: list[Tensor], name: str, number: int, watch: Stopwatch) -> Iterator[Sample]:
    """Forward, and backward to all wanted tensors. One repetition of backward keeps the saved tensors."""
    yield _sample(watch.time(forward), kind="operator", name=name, shape=(number,), direction="forward")
    outputs = forward()
    outputs = [each for each in (outputs if isinstance(outputs, tuple) else (outputs,)) if each.requires_grad]
    ones = [torch.ones_like(each) for each in outputs]

    def backward() -> None:
        torch.autograd.grad(outputs, wanted, ones, retain_graph=True, allow_unused=True)

    yield _sample(watch.time(backward), kind="operator", name=name, shape=(number,), direction="backward")


def _sample(times: Times, **what: Any) -> Sample:
    return Sample(seconds=times.seconds, spread=times.spread, repeats=times.repeats, load=times.load, **what)
