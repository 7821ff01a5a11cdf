"""Where a chain of drafts is cut."""

import pytest

from simpar.errors import UserError
from simpar.tracing.raw_operators import INPUT_VALUE, Core
from simpar.tracing.segments import segments
from tests.tracing.drafts import draft

CORE = Core(1, 1, 8, 8, ((1, ("seq",)),), ((1, ("seq",)),))


def inside(at, kind="Layer"):
    """The modules around a draft of member ``at`` of a list."""
    return (("", "Model"), ("layers", "ModuleList"), (f"layers.{at}", kind))


def decoder(layers=2):
    """A table, layers of two products and a residual sum, a product for the logits."""
    drafts = [draft("embed", "embedding", 8, INPUT_VALUE, owners=(("", "Model"), ("embed", "Embedding")))]
    stream = "embed"
    for at in range(layers):
        drafts += [
            draft(f"up{at}", "matmul", 32, stream, owners=inside(at)),
            draft(f"down{at}", "matmul", 8, f"up{at}", owners=inside(at)),
            draft(f"sum{at}", "add", 8, stream, f"down{at}", owners=inside(at)),
        ]
        stream = f"sum{at}"
    norm = draft("norm", "norm", 8, stream, owners=(("", "Model"), ("norm", "Norm")))
    head = draft("head", "matmul", 64, "norm", owners=(("", "Model"), ("head", "Linear")))
    return [*drafts, norm, head]


def test_members_of_a_list_are_segments():
    """Each continues with the value that the next one reads; a norm goes with the product behind it."""
    found = segments("m", decoder())
    assert [each.group for each in found] == ["", "layers", "layers", ""]
    assert [d.name for d in found[0].drafts] == ["embed"]
    assert [d.name for d in found[-1].drafts] == ["norm", "head"]
    assert [each.output for each in found] == ["embed", "sum0", "sum1", "head"]
    assert [each.arrives for each in found] == ["", "embed", "sum0", "sum1"]
    assert all(each.carried == () for each in found)


def test_a_value_that_is_read_later_travels():
    """A second stream beside the first is carried across every boundary up to where it is read."""
    drafts = decoder()
    drafts[-1] = draft("head", "matmul", 64, "norm", "embed", owners=drafts[-1].owners)
    found = segments("m", drafts)
    assert [each.carried for each in found] == [(), ("embed",), ("embed",), ()]


def test_attention_to_another_segment_reads_the_memory():
    """Keys and values of a value from before are what the model calls memory."""
    drafts = decoder()
    at = next(i for i, d in enumerate(drafts) if d.name == "up1")
    drafts[at : at + 1] = [
        draft("q", "matmul", 8, "sum0", owners=inside(1)),
        draft("kv", "matmul", 16, "embed", owners=inside(1)),
        draft("core", "attention", 8, "q", "kv", owners=inside(1), core=CORE),
        draft("up1", "matmul", 32, "core", owners=inside(1)),
    ]
    assert {each.memory for each in segments("m", drafts)} == {"embed"}


def test_self_attention_reads_no_memory():
    """Queries, keys and values of one value from before: where attentions and MLPs stand in lists of their own."""
    drafts = decoder()
    at = next(i for i, d in enumerate(drafts) if d.name == "up0")
    drafts[at:at] = [
        draft("q", "matmul", 8, "embed", owners=inside(0, "Attention")),
        draft("kv", "matmul", 16, "embed", owners=inside(0, "Attention")),
        draft("core", "attention", 8, "q", "kv", owners=inside(0, "Attention"), core=CORE),
        draft("after", "matmul", 8, "core", owners=(("", "Model"), ("after", "Linear"))),
        draft("sum", "add", 8, "embed", "after", owners=(("", "Model"), ("after", "Linear"))),
    ]
    found = segments("m", drafts)
    assert "embed" in found[1].carried
    assert {each.memory for each in found} == {""}


def test_one_block_is_no_chain():
    """At least three are needed, and each must be read by the next."""
    with pytest.raises(UserError, match="model = m: 2 blocks in a row"):
        segments("m", [d for d in decoder(1) if not d.name.startswith("embed")])
    lost = decoder()
    lost[4:7] = [
        draft("up1", "matmul", 32, owners=inside(1)),
        draft("down1", "matmul", 8, "up1", owners=inside(1)),
        draft("sum1", "add", 8, "up1", "down1", owners=inside(1)),
    ]
    with pytest.raises(UserError, match=r"layers\.0 is not read by the next block"):
        segments("m", lost)


def test_lists_inside_a_member_are_cut_unless_there_are_several():
    """Stages are cut into their blocks; a layer with its attentions in one list and its MLPs in another is one."""

    def nested(at, inner, member):
        path = f"layers.{at}.{inner}"
        return (*inside(at), (path, "ModuleList"), (f"{path}.{member}", inner))

    def model(*inners):
        drafts, stream = decoder(0)[:1], "embed"
        for at in range(2):
            for inner in inners:
                for member in range(2):
                    name = f"{inner}{at}{member}"
                    owners = nested(at, inner, member)
                    up = draft(f"up_{name}", "matmul", 32, stream, owners=owners)
                    drafts += [up, draft(name, "matmul", 8, f"up_{name}", owners=owners)]
                    stream = name
        return [*drafts, draft("head", "matmul", 64, stream, owners=(("", "Model"), ("head", "Linear")))]

    assert [each.group for each in segments("m", model("blocks"))][1:-1] == [
        "layers.0.blocks", "layers.0.blocks", "layers.1.blocks", "layers.1.blocks",
    ]  # fmt: skip
    assert [each.group for each in segments("m", model("attentions", "mlps"))][1:-1] == ["layers", "layers"]
