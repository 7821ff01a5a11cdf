"""Products of a layer's input with a weight, as operators, and products of the polynomials that are their sizes."""

from simpar.architectures.graph import HIDDEN, Operator, Size, Weight, term

__all__ = ["HIDDEN", "QUERY", "TOKENS", "product", "project"]

TOKENS: Size = term("batch", "seq")
QUERY: Size = term("heads", "head_dim")


def product(left: Size, right: Size) -> Size:
    """The product of two polynomials."""
    return tuple((a * b, (*x, *y)) for a, x in left for b, y in right)


def project(
    name: str, source: str, contraction: Size, columns: Size, *, bias: bool = False, region: str = "tensor"
) -> Operator:
    """A product with a weight of ``contraction`` x ``columns``, and its bias where there is one."""
    weights = [Weight(f"{name}.weight", product(contraction, columns))]
    if bias:
        weights.append(Weight(f"{name}.bias", columns, "vector"))
    return Operator(
        name, "matmul", TOKENS, columns, region, contraction=contraction, weights=tuple(weights), inputs=(source,),
        saves=(source,),
    )  # fmt: skip
