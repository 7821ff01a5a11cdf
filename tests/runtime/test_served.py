"""The folder that a run saves: libraries load its model, its tokenizer and its adapters as they are."""

import json

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")
tokenizers = pytest.importorskip("tokenizers")

from simpar import cli  # noqa: E402
from simpar.architectures.families import DECLARED  # noqa: E402

from .test_weights import files_of  # noqa: E402
from .tiny_models import MODELS  # noqa: E402

END = "<|endoftext|>"
TEXT = "the cat sat on the mat and the dog sat on the log. " * 40 + "0123456789<>/:_\\n \nuser assistant xi\n"
PROMPT = "the cat"


def tiny_tokenizer(folder, *, settings=True):
    """A byte-level BPE of at most 96 tokens, with a token for the end of a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=96, special_tokens=[END], show_progress=False))
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    if settings:
        named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "model_max_length": 10**30}
        (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return made


def flags(config, *more):
    """A short run of a config on one rank."""
    shape = ["--model", str(config), "--seq-len", "16", "--global-batch", "4", "--micro-batch", "1"]
    return ["gpt2-laptop", *shape, "--precision", "fp32", "--set", "cluster=null", "--threads", "1", *more]


def config_file(tmp_path, name="llama", **changes):
    """A tiny config of a family, as users write them: without a class, and without tokens that end a text."""
    config = {"model_type": name.split("-")[0], **MODELS[name], **changes}
    for kind in ("bos", "eos", "pad"):
        config.pop(f"{kind}_token_id", None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path / "config.json"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("given", ["folder", "file"])
def test_what_is_saved_generates_text(forked, tmp_path, name, given):
    """Model, tokenizer and pipeline of transformers from the folder alone; the end of a text stops generation."""
    transformers = pytest.importorskip("transformers")
    made = tiny_tokenizer(tmp_path / "words", settings=given == "folder")
    (tmp_path / "text.txt").write_text(TEXT)
    words = tmp_path / "words" if given == "folder" else tmp_path / "words/tokenizer.json"
    data = ["--text", "text.txt", "--tokenizer", words, "--learning-rate", "3e-3", "--save-to", "out"]
    done = forked("run", *flags(config_file(tmp_path, name), "--nproc", "1", "--steps", "3", *data))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "wrote out\n" in done.stdout
    out = tmp_path / "out"
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == [{"llama": "LlamaForCausalLM", "gpt2": "GPT2LMHeadModel"}[name]]
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == made.token_to_id(END)
    assert config["eos_token_id"] == made.token_to_id(END)
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert tokenizer(PROMPT)["input_ids"] == made.encode(PROMPT).ids
    assert tokenizer.eos_token == END
    assert model.generation_config.eos_token_id == made.token_to_id(END)
    inputs = torch.tensor([made.encode(PROMPT).ids])
    expected = model.generate(inputs, max_new_tokens=5, do_sample=False, pad_token_id=0)[0].tolist()
    said = transformers.pipeline("text-generation", model=str(out))(PROMPT, max_new_tokens=5, do_sample=False)
    assert said[0]["generated_text"] == tokenizer.decode(expected, skip_special_tokens=True)


def test_what_the_first_weights_had_beside_them_is_kept(forked, tmp_path):
    """Tokenizer, chat template and generation's defaults of the folder that a run starts from."""
    files_of("llama", MODELS["llama"], tmp_path / "in")
    tiny_tokenizer(tmp_path / "in")
    (tmp_path / "in/chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "in/generation_config.json").write_text('{"temperature": 0.6, "do_sample": true}')
    given = flags(tmp_path / "in/config.json", "--nproc", "1", "--steps", "1", "--init-from", "in", "--save-to", "out")
    done = forked("run", *given)
    assert done.returncode == 0, done.stderr
    kept = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"]
    for file in kept:
        assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "in" / file).read_bytes()


def test_what_servers_would_miss_is_said(forked, tmp_path):
    """Without a tokenizer nothing decodes what the model generates: one line on standard error."""
    done = forked("run", *flags(config_file(tmp_path), "--nproc", "1", "--steps", "1", "--save-to", "out"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == "out: no tokenizer: --tokenizer FOLDER gives one\n"
    assert json.loads((tmp_path / "out/generation_config.json").read_text()) == {"_from_model_config": True}


def test_classes_are_those_of_transformers():
    """Every declared family whose weights are known, against the library's own table."""
    pytest.importorskip("transformers")
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

    known = {name: family for name, family in DECLARED.items() if family.weights is not None and name in CLASSES}
    assert len(known) > 60
    assert {name: family.causal_class(name) for name, family in known.items()} == {
        name: CLASSES[name] for name in known
    }


@pytest.mark.parametrize(
    ("make", "more", "words"),
    [
        (lambda _: None, ["--tokenizer", "none"], "none: is not there; allowed: a folder with a tokenizer.json"),
        (lambda f: (f / "t").mkdir(), ["--tokenizer", "t"], "/t: has no tokenizer.json; allowed: what AutoTokenizer"),
        (lambda f: (f / "t").write_text("{}"), ["--tokenizer", "t"], "/t: is not a tokenizer.json (KeyError: 'model')"),
        (lambda _: None, ["--merge", "--save-to", "out"], "--merge: adapters go into the weights that are saved"),
        (lambda _: None, ["--lora-rank", "2", "--save-to", "out"], "--save-to out: adapters belong to weights that no"),
    ],
)
def test_what_cannot_be_saved_is_one_line(tmp_path, monkeypatch, capsys, make, more, words):
    """Before torch starts, with exit code 2, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    config = config_file(tmp_path)
    make(tmp_path)
    assert cli.run(["run", *map(str, flags(config, "--nproc", "1", "--steps", "1", *more))]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "gpt2-laptop-run").exists()


def test_a_tokenizer_of_another_model_is_refused(tmp_path, monkeypatch, capsys):
    """More tokens than the model has rows: the number of both."""
    monkeypatch.chdir(tmp_path)
    made = tiny_tokenizer(tmp_path / "words")
    config = config_file(tmp_path, vocab_size=20)
    given = flags(config, "--nproc", "1", "--steps", "1", "--tokenizer", "words")
    assert cli.run(["run", *map(str, given)]) == 2
    most = made.get_vocab_size() - 1
    assert f"has tokens up to number {most}, the model's vocabulary has 20; allowed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt_oss", "adapters of experts: files of gpt_oss have all experts as one tensor; allowed: --merge, or"),
        ("qwen2_moe", "adapters of experts: an MLP beside them has the same words, of which PEFT reads one"),
    ],
)
def test_adapters_that_peft_would_not_read_are_not_saved_alone(tmp_path, monkeypatch, capsys, name, words):
    """One line before torch starts, with what is allowed."""
    monkeypatch.chdir(tmp_path)
    files_of(name, MODELS[name], tmp_path / "in")
    given = flags(tmp_path / "in/config.json", "--nproc", "1", "--steps", "1", "--init-from", "in", "--save-to", "out")
    assert cli.run(["run", *map(str, given), "--lora-rank", "2"]) == 2
    assert words in capsys.readouterr().err


ADAPTED = ["--lora-rank", "2", "--learning-rate", "1e-2", "--steps", "3"]


def trained(forked, tmp_path, name, *more):
    """Adapters of a run from weights in ``in``, alone in ``alone`` and merged in ``whole``; the base's tensors."""
    base = files_of(name.split("-")[0], MODELS[name], tmp_path / "in")
    for folder, merge in (("alone", []), ("whole", ["--merge"])):
        given = flags(tmp_path / "in/config.json", *ADAPTED, "--init-from", "in", "--save-to", folder, *merge, *more)
        done = forked("run", *given, "-o", f"log-{folder}")
        assert done.returncode == 0, done.stderr
    return base


def tensors_in(folder):
    """All tensors of a folder's files."""
    result = {}
    for path in sorted(folder.glob("*.safetensors")):
        result |= safetensors.load_file(path)
    return result


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("gpt2", ["--nproc", "2", "--pp", "2"]),
        pytest.param("llama", ["--nproc", "2", "--tp", "2"], marks=pytest.mark.slow),
        pytest.param("llama", ["--nproc", "2", "--zero", "3"], marks=pytest.mark.slow),
        pytest.param("phi3", ["--nproc", "1"], marks=pytest.mark.slow),
        pytest.param("mixtral", ["--nproc", "2", "--ep", "2"], marks=pytest.mark.slow),
        pytest.param("gpt_neox", ["--nproc", "1"], marks=pytest.mark.slow),
    ],
)
def test_adapters_are_pefts(forked, tmp_path, name, layout):
    """Both halves by PEFT's names and shapes: the base plus their products is the merged model."""
    base = trained(forked, tmp_path, name, *layout)
    config = json.loads((tmp_path / "alone/adapter_config.json").read_text())
    assert config["peft_type"] == "LORA"
    assert config["base_model_name_or_path"] == str(tmp_path / "in")
    pairs, whole = tensors_in(tmp_path / "alone"), tensors_in(tmp_path / "whole")
    stems = {key.removesuffix(".lora_A.weight") for key in pairs if key.endswith("lora_A.weight")}
    assert {f"{stem}.lora_{half}.weight" for stem in stems for half in "AB"} == set(pairs)
    changed = set()
    for stem in stems:
        down, up = pairs[f"{stem}.lora_A.weight"], pairs[f"{stem}.lora_B.weight"]
        module = stem.removeprefix("base_model.model.")
        assert any(module.endswith(f".{target}") for target in config["target_modules"])
        ranks = [rank for end, rank in config["rank_pattern"].items() if module.endswith(f".{end}")]
        assert down.shape[0] == up.shape[1] == (ranks or [config["r"]])[0]
        delta = up @ down
        expected = base[f"{module}.weight"] + (delta.T if config["fan_in_fan_out"] else delta)
        torch.testing.assert_close(whole[f"{module}.weight"], expected, rtol=1e-6, atol=1e-7)
        assert delta.abs().max() > 1e-4
        changed.add(f"{module}.weight")
    assert set(whole) == set(base)
    for key in set(base) - changed:
        assert torch.equal(whole[key], base[key])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        "llama",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("gpt2", "mixtral", "qwen3_moe", "nemotron_h", "falcon_h1", "deepseek_v3", "deepseek_v2")
        ),
    ],
)
def test_peft_loads_them(forked, tmp_path, name):
    """Its model over the base has the logits of the merged model."""
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    attention = ["--set", "plan.lora_targets=[q_proj,k_proj,v_proj,o_proj]"] if "deepseek" in name else []
    trained(forked, tmp_path, name, "--nproc", "1", *attention)
    auto = transformers.AutoModelForCausalLM
    adapted = peft.PeftModel.from_pretrained(auto.from_pretrained(tmp_path / "in"), tmp_path / "alone")
    merged, tokens = auto.from_pretrained(tmp_path / "whole"), torch.arange(12)[None]
    with torch.no_grad():
        logits, frozen = adapted(tokens).logits, auto.from_pretrained(tmp_path / "in")(tokens).logits
        torch.testing.assert_close(logits, merged(tokens).logits, rtol=1e-5, atol=1e-6)
    assert (logits - frozen).abs().max() > 1e-3


def whole_model(folder):
    """Tensors of a saved model, whose index names every one of them."""
    found = tensors_in(folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(found)
    return found


@pytest.mark.parametrize("sync", ["local-sgd", pytest.param("diloco", marks=pytest.mark.slow)])
def test_replicas_that_step_on_their_own_leave_their_mean(forked, tmp_path, sync):
    """Within a round they differ; after one step of SGD their mean is the step of the mean gradient."""
    files_of("llama", MODELS["llama"], tmp_path / "in")
    rate = ["--optimizer", "sgd", "--learning-rate", "0.1", "--steps", "1", "--init-from", "in"]
    given = flags(tmp_path / "in/config.json", *rate)
    for name, more in (("mean", ["--sync", sync, "--set", "plan.sync_every=4"]), ("together", [])):
        done = forked("run", *given, "--nproc", "2", *more, "--save-to", name, "-o", f"log-{name}")
        assert done.returncode == 0, done.stderr
    mean, together, begun = (whole_model(tmp_path / n) if n != "in" else tensors_in(tmp_path / n)
                             for n in ("mean", "together", "in"))  # fmt: skip
    for key, expected in together.items():
        torch.testing.assert_close(mean[key], expected, rtol=1e-5, atol=1e-7)
    assert max(float((mean[key] - begun[key]).abs().max()) for key in begun) > 1e-3


@pytest.mark.parametrize("sync", ["bsp", pytest.param("asp", marks=pytest.mark.slow)])
def test_parameter_servers_leave_their_model(forked, tmp_path, sync):
    """Synchronous servers have the parameters of data parallelism, asynchronous ones all updates of all replicas."""
    files_of("llama", MODELS["llama"], tmp_path / "in")
    rate = ["--optimizer", "sgd", "--learning-rate", "0.1", "--steps", "2", "--init-from", "in"]
    given = flags(tmp_path / "in/config.json", *rate)
    servers = ["--sync", sync, "--set", "plan.servers=1"]
    for name, more in (("served", servers), ("together", [])):
        done = forked("run", *given, "--nproc", "2", *more, "--save-to", name, "-o", f"log-{name}")
        assert done.returncode == 0, done.stderr
    served, together, begun = (
        whole_model(tmp_path / "served"),
        whole_model(tmp_path / "together"),
        tensors_in(tmp_path / "in"),
    )
    moved = [float((served[key] - begun[key]).norm() / (together[key] - begun[key]).norm()) for key in begun]
    if sync == "bsp":
        for key, expected in together.items():
            torch.testing.assert_close(served[key], expected, rtol=1e-5, atol=1e-7)
    else:  # four updates with the gradients of halves instead of two with their means
        assert 1.5 < sorted(moved)[len(moved) // 2] < 2.5
