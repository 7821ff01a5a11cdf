"""Models that only transformers' own classes compute: the losses of one process, whatever shares its states."""

import json

import pytest

from simpar.architectures.families import DECLARED
from simpar.errors import UserError
from simpar.runtime.job import RunJob
from simpar.runtime.request import load_request, make_ready
from tests.tracing.test_transformers import SECTIONS

FLAGS = ["--seq-len", 16, "--global-batch", 4, "--micro-batch", 2, "--set", "cluster=null", "--threads", 1]
UNDECLARED = {
    "model_type": "diffllama", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip

SEEING = (
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_5",
    "gemma3",
    "internvl",
    "llava",
    "smolvlm",
    "cohere2_vision",
    "aya_vision",
    "ovis2",
)
"""Models that see: patches of images of any size, images of one size."""


def config_of(kind):
    """The tiny config of a family; models that see have 4 visual tokens an image, by the token 7."""
    if kind == "diffllama":
        return UNDECLARED
    config = {**DECLARED[kind].tiny, "model_type": kind}
    if kind in ("bert", "roberta"):
        return {**config, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    if kind not in SEEING:
        return config
    config = {**config, "image_token_id": 7, "image_token_index": 7}
    if kind in SECTIONS:
        rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": SECTIONS[kind]}
        config["text_config"] = {**config["text_config"], "rope_parameters": rope}
    return {**config, "patches_per_image": 16} if kind.startswith("qwen") else config


def write(folder, kind, **more):
    """A tiny config as a file."""
    (folder / "model.json").write_text(json.dumps({**config_of(kind), **more}))


NOT_CAUSAL = ("bert", "roberta", "t5", "umt5")
"""Encoders, and encoders with a decoder."""


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("kind", ["qwen3_next", "deepseek_v32", "diffllama", *SEEING, *NOT_CAUSAL])
def test_shared_states_train_as_one_process_does(forked, tmp_path, kind, zero):
    """DDP and FSDP over two ranks give the losses of one, and the run says whose class it is."""
    write(tmp_path, kind)
    losses = []
    for ranks, shared in ((1, 0), (2, zero)):
        layout = ["--nproc", ranks, "--zero", shared, "--learning-rate", "1e-2", "--json", "out.json", "-o", str(ranks)]
        done = forked("run", "gpt2-laptop", "--model", "model.json", *FLAGS, *layout, "--steps", 3)
        assert done.returncode == 0, done.stderr
        assert "trained with transformers' own class, data parallel only" in done.stderr
        losses.append(json.loads((tmp_path / "out.json").read_text())["measured"]["losses"])
    assert len({*losses[0]}) == 3
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"plan.tp": 2, "plan.dp": 1}, "plan.tp = 2: a module of your own, or of transformers, is only data parallel"),
        ({"weights.save_to": "out"}, "--save-to out: a run of transformers' own class starts from random weights"),
    ],
)
def test_what_such_a_run_cannot_do_is_refused(tmp_path, monkeypatch, values, said):
    """Before anything is started."""
    write(tmp_path, "qwen3_next")
    monkeypatch.chdir(tmp_path)
    flags = {"model": "model.json", "training.seq_len": 16, "training.global_batch": 4}
    own = {name: value for name, value in values.items() if name.startswith("plan.")}
    request = load_request("gpt2-laptop", {**flags, **own}, ["cluster=null"])
    options = {"steps": 1, "folder": "here"}
    if "weights.save_to" in values:
        options["weights"] = {"save_to": values["weights.save_to"]}
    with pytest.raises(UserError, match=said):
        make_ready(request, 2, 1, options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("kind", SEEING)
def test_a_model_that_sees_is_the_class_that_reads_images(kind, images):
    """Its parameters are those that are predicted, logits follow the images, and the tower learns from them."""
    torch = pytest.importorskip("torch")
    from simpar.architectures.hf_config import read
    from simpar.runtime.pictured import made_of, make_pictured_model

    config = {**config_of(kind), "images_per_sequence": images}
    graph = read(config, kind)
    torch.manual_seed(0)
    model = make_pictured_model(config, graph, 16)
    assert sum(each.numel() for each in model.parameters()) == graph.num_parameters()
    for each in model.parameters():
        if not each.any():  # what joins images and text in Gemma 3 is 0 at first
            torch.nn.init.normal_(each, std=0.02)
    tokens = torch.randint(0, 96, (2, 16))
    logits = model(tokens)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    learnt = {name for name, each in model.named_parameters() if each.grad is not None and each.grad.abs().sum() > 0}
    assert any(("visi" in name or "visual" in name or "projector" in name) for name in learnt)
    hidden = tokens.clone()
    hidden[:, 1:5] = (hidden[:, 1:5] + 1) % 96  # under an image: its pixels are others, the text behind it the same
    assert not torch.equal(model(hidden)[:, -1], logits[:, -1])
    pixels = made_of(tokens, images, model.pictures.shape)
    assert len(pixels) == 2 * images * (model.pictures.shape[0] if model.pictures.grid else 1)
    assert torch.equal(pixels[: len(pixels) // 2], made_of(tokens[:1], images, model.pictures.shape))


@pytest.mark.parametrize(
    ("kind", "more", "said"),
    [
        ("qwen3_vl", {"image_token_id": 96}, "image_token_id = 96: allowed: one of the 96 tokens"),
        ("qwen3_vl", {"images_per_sequence": 4}, "training.seq_len = 16: .* has 4 x 4 tokens of images; allowed: more"),
        ("llama4", {}, "fails once it has read an image .*; allowed: images_per_sequence = 0"),
        ("mistral3", {}, "reads vision_image_sizes, which no run makes; allowed: images_per_sequence = 0"),
    ],
)
def test_images_that_no_run_makes_are_refused(tmp_path, monkeypatch, kind, more, said):
    """Before anything is started; text alone is the way out where a class is the reason."""
    write(tmp_path, kind, **{"patches_per_image": 16, **more} if kind in SEEING else more)
    monkeypatch.chdir(tmp_path)
    length = 16 if kind in SEEING else 1024
    flags = {"model": "model.json", "training.seq_len": length, "training.global_batch": 4}
    with pytest.raises(UserError, match=said):
        make_ready(load_request("gpt2-laptop", flags, ["cluster=null"]), 1, 1, {"steps": 1, "folder": "here"})


def test_a_model_that_the_decoder_builds_stays_its_own():
    """Nothing of transformers is asked for."""
    job = RunJob(folder="x", plan={}, model="tiny-llama", training={"seq_len": 16, "global_batch": 4}, steps=1)
    assert job.library_parts == ()
    assert job.built_graph() == job.graph()


def loss_by_hand(kind, job, steps):
    """Losses of transformers' class in a plain loop of AdamW, on the samples of a job whose batch is one rank's."""
    torch = pytest.importorskip("torch")
    import transformers

    from simpar.runtime.data import Loader, open_source
    from simpar.runtime.from_transformers import masked
    from simpar.runtime.masked import as_trained
    from simpar.runtime.update import BETAS, EPS

    named = {name: value for name, value in config_of(kind).items() if name != "model_type"}
    config = transformers.AutoConfig.for_model(kind, **named)
    pair = config.is_encoder_decoder
    torch.manual_seed(job.learning.seed)
    model = (transformers.AutoModelForSeq2SeqLM if pair else transformers.AutoModelForMaskedLM).from_config(config)
    how = {"lr": job.learning.learning_rate, "betas": BETAS, "eps": EPS, "weight_decay": 0.0}
    optimizer = torch.optim.AdamW(model.parameters(), **how)
    source = as_trained(open_source(job.data, job.training, 96, job.learning.seed), job, 96)
    loader, losses = Loader(source, job.training.global_batch, 0, 1, job.learning.seed), []
    for step in range(steps):
        tokens, wanted = torch.from_numpy(loader.batch(step))[:, :-1], torch.from_numpy(loader.targets(step)[0])[:, 1:]
        inputs = {"input_ids": masked(tokens, 95), "decoder_input_ids": tokens} if pair else {"input_ids": tokens}
        logits = model(**inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", NOT_CAUSAL)
def test_models_that_are_no_decoders_train_as_transformers_does(forked, tmp_path, kind):
    """Masked tokens of an encoder, a text from its rest: the losses of a plain loop, over two ranks that shard all."""
    write(tmp_path, kind)
    layout = ["--nproc", 2, "--zero", 3, "--learning-rate", "1e-2", "--json", "out.json", "-o", "run"]
    exact = ["--precision", "fp32", "--optimizer", "adamw"]
    done = forked("run", "gpt2-laptop", "--model", "model.json", *FLAGS, *layout, *exact, "--steps", 4)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())["measured"]["losses"]
    job = RunJob.load(tmp_path / "run/job.json").model_copy(update={"model": config_of(kind)})
    assert found == pytest.approx(loss_by_hand(kind, job, 4), abs=1e-5)
    assert found[-1] < found[0] or kind in ("bert", "roberta")  # a few masked tokens a step tell little


def test_lengths_of_a_decoder_apart_are_refused(tmp_path, monkeypatch):
    """A run gives both towers the same tokens; nor is a pair cut into stages."""
    monkeypatch.chdir(tmp_path)
    flags = {"model": "model.json", "training.seq_len": 16, "training.global_batch": 4}
    write(tmp_path, "t5", decoder_seq_len=8)
    with pytest.raises(UserError, match="decoder_seq_len = 8: a run gives encoder and decoder the same tokens"):
        make_ready(load_request("gpt2-laptop", flags, ["cluster=null"]), 2, 1, {"steps": 1, "folder": "here"})
    write(tmp_path, "t5")
    cut = load_request("gpt2-laptop", {**flags, "plan.pp": 2, "plan.dp": 1}, ["cluster=null"])
    with pytest.raises(UserError, match=r"plan\.pp = 2: a module of your own, or of transformers, is only data"):
        make_ready(cut, 2, 1, {"steps": 1, "folder": "here"})
