"""Which shipped models have the sizes that a text states."""

import pytest

from simpar.architectures.catalogue import list_shipped, load_model
from simpar.frameworks.match import differing_sizes, kind_of, models_with, sizes_of


@pytest.mark.parametrize(
    ("name", "left_out", "models"),
    [
        ("llama-3-8b", (), ["llama-3-8b", "llama-3.1-8b"]),
        ("llama-3-8b", ("vocab",), ["llama-3-8b", "llama-3.1-8b", "mistral-7b"]),
    ],
)
def test_what_is_stated_tells_models_apart(name, left_out, models):
    """Sizes that a text leaves out are no reason to drop a model."""
    sizes = {key: size for key, size in sizes_of(load_model(name)).items() if key not in left_out}
    assert set(models) <= set(models_with(sizes))
    assert models_with({**sizes, "kv_heads": sizes["kv_heads"] + 1}) == []


def test_a_launch_without_a_vocabulary_is_no_diffusion_transformer():
    """Wan 2.1 14B has the layers, widths and heads of a language model of 13 B."""
    sizes = {"layers": 40, "hidden": 5120, "ffn": 13824, "heads": 40}
    assert sizes.items() <= sizes_of(load_model("wan2.1-t2v-14b")).items()
    assert "llama-2-13b" in models_with(sizes)
    assert "wan2.1-t2v-14b" not in models_with(sizes)


def test_layers_of_a_tower_may_be_left_out():
    """Kimi K3: 93 layers of the language model; 27 of its tower and its two ends, which a text may count, before."""
    graph = load_model("kimi-k3")
    usual = {"layers": 93, "hidden": 7168, "heads": 96}
    assert differing_sizes(graph, usual, None) == {}
    assert differing_sizes(graph, {**usual, "layers": 93 + 27 + 2}, None) == {}
    assert differing_sizes(graph, {**usual, "layers": 92}, None) == {"layers": (92, 122)}


@pytest.mark.slow
def test_no_model_with_the_sizes_is_passed_over():
    """Configs are dropped by their text before they are parsed: never one whose model has all that is stated."""
    graphs = {name: load_model(name) for name in list_shipped()}
    shipped = {
        name: (sizes_of(graph), kind_of(graph)) for name, graph in graphs.items() if graph.dims.get("vocab", 0) > 1
    }
    for sizes, kind in shipped.values():
        for left_out in ((), ("vocab",), ("kv_heads",), ("layers", "ffn", "vocab", "kv_heads")):
            told = {key: size for key, size in sizes.items() if key not in left_out}
            for key in told:
                for changed in (told, {**told, key: told[key] + 1}, {**told, key: told[key] * 2}):
                    expected = [
                        name
                        for name, (own, other) in shipped.items()
                        if other == kind and all(own[each] == size for each, size in changed.items())
                    ]
                    assert models_with(changed, kind) == expected
