"""Documents of packed sequences see nothing of each other: losses and steps are those of each document alone."""

import json
from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from simpar.architectures.training import Training  # noqa: E402
from simpar.errors import UserError  # noqa: E402
from simpar.runtime import tokenize  # noqa: E402
from simpar.runtime.data import IGNORED_TARGET, Loader, SeparateDocuments, TokenFile, open_source  # noqa: E402
from simpar.runtime.job import Data  # noqa: E402
from simpar.runtime.request import Request, make_ready, simulate_job  # noqa: E402
from simpar.runtime.tokenize import TokenizeOptions  # noqa: E402

from .test_served import tensors_in, tiny_tokenizer  # noqa: E402
from .test_weights import files_of  # noqa: E402
from .tiny_models import MODELS  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
LENGTH, BATCH, RATE = 16, 4, 0.5


def corpus(folder):
    """Documents of a few tokens, as a folder of simpar tokenize."""
    tiny_tokenizer(folder / "words")
    words = ["the", "cat", "sat", "on", "the", "mat", "the", "dog", "sat", "on", "the", "cat"]
    rows = ({"text": " ".join(words[: 1 + number % 9])} for number in range(60))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenize.tokenize([str(folder / "rows.jsonl")], str(folder / "words"), folder / "tokens", TokenizeOptions())


def test_positions_and_targets_begin_anew():
    """By hand: documents of 3, 4 and 6 tokens in sequences of five."""
    file = TokenFile(np.arange(13, dtype=np.uint16), 5, 96, "tokens")
    source = SeparateDocuments(file, np.array([3, 7, 13]))
    assert len(source) == 2
    assert source.positions(0).tolist() == [0, 1, 2, 0, 1]
    assert source.wanted(0).tolist() == [0, 1, 2, IGNORED_TARGET, 4, 5]
    assert source.sample(1).tolist() == [5, 6, 7, 8, 9, 10]
    assert source.positions(1).tolist() == [0, 1, 0, 1, 2]
    assert source.wanted(1).tolist() == [5, 6, IGNORED_TARGET, 8, 9, 10]
    edge = SeparateDocuments(TokenFile(np.arange(11, dtype=np.uint16), 5, 96, "tokens"), np.array([5, 11]))
    assert edge.wanted(0).tolist() == [0, 1, 2, 3, 4, IGNORED_TARGET]
    assert edge.positions(0).tolist() == edge.positions(1).tolist() == [0, 1, 2, 3, 4]


def alone(model, folder):
    """The mean loss of a global batch, every document by itself, cut where sequences end."""
    ends = np.fromfile(folder / "ends.bin", np.int64)
    source = open_source(Data(kind="tokens", path=str(folder)), Training(seq_len=LENGTH, global_batch=BATCH), 96, 0)
    total, count, documents = 0.0, 0, 0
    for index in Loader(source, BATCH, 0, 1, 0).indices(0).tolist():
        first, last = index * LENGTH, (index + 1) * LENGTH + 1
        tokens = torch.from_numpy(source.sample(index))
        for start, stop in pairwise([first, *ends[(ends > first) & (ends < last)].tolist(), last]):
            document = tokens[start - first : stop - first]
            if len(document) > 1:
                logits = model(document[None, :-1]).logits[0]
                total = total + torch.nn.functional.cross_entropy(logits, document[1:], reduction="sum")
                count, documents = count + len(document) - 1, documents + 1
    assert documents > 2 * BATCH
    return total / count


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("gpt2", ["--nproc", "2", "--pp", "2", "--recompute", "full"]),
        *(
            pytest.param(family, layout, marks=pytest.mark.slow)
            for family, layout in (
                ("llama", ["--nproc", "1", "--micro-batch", "4"]),
                ("llama", ["--nproc", "2", "--zero", "3", "--recompute", "selective"]),
                ("llama", ["--nproc", "2", "--tp", "2", "--sequence-parallel", "--micro-batch", "2"]),
                ("llama", ["--nproc", "2", "--pp", "2", "--schedule", "zb-h1"]),
                ("gemma3_text", ["--nproc", "2", "--zero", "2"]),
                ("gpt_oss", ["--nproc", "2"]),
                ("deepseek_v2", ["--nproc", "2", "--zero", "1"]),
                ("deepseek_v2", ["--nproc", "2", "--tp", "2", "--sequence-parallel"]),
                ("llama", ["--nproc", "2", "--cp", "2", "--micro-batch", "2"]),
                ("llama", ["--nproc", "2", "--cp", "2", "--set", "plan.cp_balance=striped", "--zero", "3"]),
                ("llama", ["--nproc", "2", "--cp", "2", "--set", "plan.cp_balance=contiguous"]),
                ("llama", ["--nproc", "2", "--cp", "2", "--set", "plan.cp_method=all_gather", "--recompute", "full"]),
                ("llama", ["--nproc", "2", "--cp", "2", "--set", "plan.cp_method=ulysses", "--micro-batch", "2"]),
                ("llama", ["--nproc", "4", "--cp", "4", "--set", "plan.cp_method=ring", "--set", "plan.ulysses=2"]),
                ("gemma3_text", ["--nproc", "2", "--cp", "2", "--set", "plan.cp_method=ring"]),
                ("gpt_oss", ["--nproc", "2", "--cp", "2"]),
                ("deepseek_v2", ["--nproc", "2", "--cp", "2"]),
                ("nemotron_h", ["--nproc", "2", "--zero", "2"]),
                ("nemotron_h", ["--nproc", "2", "--tp", "2", "--sequence-parallel"]),
                ("nemotron_h", ["--nproc", "2", "--pp", "2", "--micro-batch", "2"]),
                ("falcon_h1", ["--nproc", "1", "--micro-batch", "4"]),
                ("nemotron_h", ["--nproc", "2", "--cp", "2", "--micro-batch", "2"]),
                ("nemotron_h", ["--nproc", "2", "--cp", "2", "--set", "plan.cp_method=ulysses", "--zero", "3"]),
                ("nemotron_h", ["--nproc", "4", "--cp", "4", "--set", "plan.cp_balance=striped"]),
                (
                    "nemotron_h",
                    ["--nproc", "4", "--cp", "2", "--tp", "2", "--sequence-parallel", "--recompute", "full"],
                ),
                ("falcon_h1", ["--nproc", "2", "--cp", "2", "--recompute", "selective"]),
            )
        ),
    ],
)
def test_packed_documents_train_as_each_alone(forked, tmp_path, family, layout):
    """Loss and step of SGD are those of transformers' model on single documents."""
    transformers = pytest.importorskip("transformers")
    files_of(family, {**MODELS[family], "pad_token_id": None}, tmp_path / "in")
    corpus(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "in", dtype=torch.float32, attn_implementation="eager"
    )
    loss = alone(model, tmp_path / "tokens")
    loss.backward()
    shape = ["--model", "in/config.json", "--seq-len", LENGTH, "--global-batch", BATCH, "--steps", "1"]
    exact = ["--precision", "fp32", "--optimizer", "sgd", "--learning-rate", RATE, "--set", "cluster=null"]
    data = ["--tokens", "tokens", "--apart", "--init-from", "in", "--save-to", "out", "--threads", "1"]
    done = forked("run", "gpt2-laptop", *shape, *exact, *data, "--micro-batch", "1", *layout, "--json", "r.json")
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "r.json").read_text())["measured"]
    assert measured["losses"][0] == pytest.approx(float(loss.detach()), abs=2e-6)
    saved = tensors_in(tmp_path / "out")
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and name in saved:
            expected = parameter.detach() - RATE * parameter.grad
            torch.testing.assert_close(saved[name], expected, rtol=1e-4, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [["--nproc", "1"], ["--nproc", "2", "--pp", "2"]])
def test_evaluation_keeps_documents_apart(forked, tmp_path, layout):
    """Held-out data that is the training's has the loss of its first step, if nothing is learnt."""
    corpus(tmp_path)
    shape = [
        "--model",
        "tiny-llama",
        "--seq-len",
        LENGTH,
        "--global-batch",
        BATCH,
        "--steps",
        "1",
        "--micro-batch",
        "1",
    ]
    data = ["--tokens", "tokens", "--held-out", "tokens", "--eval-every", "1", "--apart", "--learning-rate", "1e-12"]
    done = forked("run", "gpt2-laptop", *shape, *data, *layout, "--set", "cluster=null", "--json", "r.json")
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "r.json").read_text())["measured"]
    assert measured["evaluations"]["1"] == pytest.approx(measured["losses"][0], abs=1e-6)


def ready(tmp_path, *, model="tiny-llama", plan=(), training=(), machine=(), **data):
    """What a run on two ranks of a laptop would do."""
    asked = Request.model_validate(
        {
            "model": model,
            "cluster": {"hardware": "laptop-cpu-4"},
            "plan": {"micro_batch": 1, **dict(plan)},
            "training": {"seq_len": LENGTH, "global_batch": BATCH, **dict(training)},
        }
    )
    given = {"kind": "tokens", "path": str(tmp_path / "tokens"), **data}
    given = {name: value for name, value in given.items() if value is not None}
    options = {"steps": 1, "folder": str(tmp_path / "run"), "data": given, "machine": dict(machine)}
    return make_ready(asked, 2, 1, options)


def test_a_scenario_and_its_data_agree(tmp_path):
    """Documents of a scenario keep the data's apart, whose own lengths are predicted; padded ones need no mask."""
    corpus(tmp_path)
    stated = ready(tmp_path, training={"documents": {"mean": 999}})
    asked, across = ready(tmp_path, apart=True), ready(tmp_path)
    padded = ready(tmp_path, training={"documents": {"mean": 9, "packing": "pad"}})
    assert stated.job.data.apart
    assert stated.training == asked.training
    assert sum(asked.training.documents.lengths) == np.fromfile(tmp_path / "tokens/ends.bin", np.int64)[-1]
    assert across.training.documents is padded.training.documents is None
    assert not padded.job.data.pack
    flop = [simulate_job(each).speed.model_flops_per_step for each in (asked, across)]
    assert flop[0] < flop[1]


HYBRID = {
    "model_type": "nemotron_h", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "hybrid_override_pattern": "M*", "num_attention_heads": 4, "num_key_value_heads": 2, "mamba_num_heads": 8,
    "mamba_head_dim": 4, "ssm_state_size": 6, "n_groups": 2, "chunk_size": 5,
}  # fmt: skip


@pytest.mark.parametrize(("model", "plan"), [("tiny-llama", {"cp": 2}), (HYBRID, {"dp": 2})])
def test_parts_of_documents_and_states_are_predicted(tmp_path, model, plan):
    """Less attention than without documents, in context parallelism and beside state-space layers."""
    corpus(tmp_path)
    flop = [simulate_job(ready(tmp_path, model=model, plan=plan, apart=apart)).speed for apart in (True, False)]
    assert flop[0].model_flops_per_step < flop[1].model_flops_per_step


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"machine": {"compile": True}}, "--apart: --compile"),
        ({"pack": False}, "--apart with --no-pack"),
        (
            {"path": None, "kind": "synthetic", "apart": None, "training": {"documents": {"mean": 9}}},
            "synthetic tokens",
        ),
        ({"apart": False, "training": {"documents": {"mean": 9}}}, "documents.packing = pack with data.apart = False"),
    ],
)
def test_what_cannot_be_kept_apart_is_refused(tmp_path, changes, words):
    """One line, before anything starts."""
    corpus(tmp_path)
    with pytest.raises(UserError) as refused:
        ready(tmp_path, **{"apart": True, **changes})
    assert words in str(refused.value)


def test_a_flat_file_has_no_documents(tmp_path):
    """Their ends are in the folder."""
    corpus(tmp_path)
    with pytest.raises(UserError, match="--apart: its documents are not known; allowed: a folder of simpar tokenize"):
        ready(tmp_path, apart=True, path=str(tmp_path / "tokens/tokens.bin"))
