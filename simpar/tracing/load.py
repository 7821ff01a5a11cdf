"""Load a model by catalogue name, by file, or by ``module:function``."""

from simpar.architectures.catalogue import load_model as load_known
from simpar.architectures.graph import ModelGraph
from simpar.tracing.code import is_code

DEFAULT_SEQ_LEN = 256


def load_model(name: str, *, seq_len: int = DEFAULT_SEQ_LEN) -> ModelGraph:
    """A model of the catalogue, the path of a config.json, or ``module:function``, which runs the user's code.

    What the function returns is traced with sequences of ``seq_len`` tokens. Raises UserError for an unknown name, a
    file that cannot be read and a module that cannot be traced.

    >>> model = load_model("llama-3-8b")
    >>> len(model.layers), model.num_parameters()
    (32, 8030261248)
    """
    if not is_code(name):
        return load_known(name)
    from simpar.tracing.graph import trace_model  # late: models of the catalogue need no tracing

    return trace_model(name, seq_len)
