"""Loops over the tokens of a sequence: one pass, whatever the length."""

import pytest

import simpar
from simpar.tracing.graph import trace_library
from simpar.tracing.time_loops import whole_scans
from tests.gate import some

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SEQ = 32
CONFIGS = {
    "rwkv": {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 64},
    "recurrent_gemma": {
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "lru_width": 32, "attention_window_size": 64,
    },
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", some(CONFIGS, ["rwkv"]))
def test_classes_that_loop_over_tokens_answer(kind: str) -> None:
    """With the parameters that transformers counts."""
    graph = trace_library({**CONFIGS[kind], "model_type": kind}, "", kind, SEQ, f"model = {kind}")
    with torch.device("meta"):
        made = transformers.AutoModelForCausalLM.from_config(transformers.CONFIG_MAPPING[kind](**CONFIGS[kind]))
    assert graph.num_parameters() == made.num_parameters()
    training = simpar.Training(seq_len=SEQ, global_batch=16)
    result = simpar.simulate(graph, "dgx-h100", simpar.Plan(zero=3, micro_batch=1), training, with_timeline=False)
    assert result.step_time_s > 0


class Loop(torch.nn.Module):
    """Griffin's recurrence, as transformers names its method."""

    def _rnn_scan(self, hidden_states, recurrent_gate, reset=None):
        assert reset, "training runs a kernel"
        return hidden_states * recurrent_gate, None

    def forward(self, x):
        """The pass alone."""
        return self._rnn_scan(x, recurrent_gate=x, reset=None)[0]


def test_a_loop_is_a_call_while_it_is_recorded() -> None:
    """It reads values and gates, and makes a tensor like the values; the module is as before afterwards."""
    noted = []
    module, x = Loop(), torch.ones(2, 4, 8)

    def note(op, given, like):
        noted.append((op, len(given)))
        return like

    with whole_scans(module, note):
        assert module(x) is x
    assert noted == [("elementwise_scan", 2)]
    with pytest.raises(AssertionError, match="runs a kernel"):
        module(x)
