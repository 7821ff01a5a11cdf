"""Pure bf16: updates are rounded at random without bias, by seed, in every layout as in one process."""

import json

import pytest

torch = pytest.importorskip("torch")

from simpar.architectures.training import Training  # noqa: E402
from simpar.errors import UserError  # noqa: E402
from simpar.plan.plan import Plan  # noqa: E402
from simpar.runtime.initial import Draws  # noqa: E402
from simpar.runtime.prepare import prepare  # noqa: E402
from simpar.runtime.rounding import InSixteenBits, PlacedName, Rounding, rounded_at_random  # noqa: E402

from .test_same_numbers import SHAPES  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
PURE = {"parameter_dtype": "bf16", "master_weights": False, "grad_dtype": "bf16"}
WHOLE = (64, 256)


def draws(key=7, rows=slice(0, WHOLE[0])):
    """Bits of some rows of a tensor."""
    return Draws(key, WHOLE, (rows, slice(0, WHOLE[1])), "cpu")


def test_values_become_one_of_their_neighbours_without_bias():
    """1 + 0.3 ulp goes up in three of ten elements; what bf16 has stays, and so does what is not finite."""
    ulp = 2.0**-7  # of bf16 between one and two
    rounded = rounded_at_random(torch.full(WHOLE, 1.0 + 0.3 * ulp), draws())
    assert {*rounded.unique().tolist()} == {1.0, 1.0 + ulp}
    share = float((rounded > 1.0).double().mean())
    assert share == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / rounded.numel()) ** 0.5)
    down = rounded_at_random(torch.full(WHOLE, -1.0 - 0.3 * ulp), draws())
    torch.testing.assert_close(down, -rounded, rtol=0, atol=0)
    for still in (1.5, 0.0, -(2.0**-130), float("inf"), float("-inf")):
        assert (rounded_at_random(torch.full(WHOLE, still), draws()) == still).all()
    assert rounded_at_random(torch.full(WHOLE, float("nan")), draws()).isnan().all()


def test_a_part_is_rounded_as_in_the_whole():
    """Bits follow from the key and the place alone."""
    values = torch.linspace(-3, 3, 64 * 256).view(WHOLE)
    whole = rounded_at_random(values, draws())
    torch.testing.assert_close(rounded_at_random(values[16:40], draws(rows=slice(16, 40))), whole[16:40])
    assert not torch.equal(rounded_at_random(values, draws(key=8)), whole)


@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", [3, None])
def test_small_updates_arrive_on_average(seed, kept):
    """100 steps of AdamW by a two-thousandth each: all of the way at random, none of it to the nearest."""
    parameter = torch.nn.Parameter(torch.ones(WHOLE, dtype=torch.bfloat16))
    place = PlacedName("matrix", WHOLE, (slice(0, WHOLE[0]), slice(0, WHOLE[1])))
    rounding = Rounding(seed, {parameter: place})
    optimizer = InSixteenBits(
        [parameter], kind=torch.optim.AdamW, rounding=rounding, states=("exp_avg", "exp_avg_sq"), kept_dtype=kept,
        lr=5e-4, weight_decay=0.0, betas=(0.9, 0.95),
    )  # fmt: skip
    for _ in range(100):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        rounding.step += 1
    moved = 1.0 - float(parameter.double().mean())
    assert moved == pytest.approx(0.05 if seed is not None else 0.0, abs=1e-3)
    assert {each.dtype for name, each in optimizer.state[parameter].items() if name != "step"} == {kept}


def flags(*more):
    """A few steps of a small model in pure bf16."""
    shape = ["--seq-len", "16", "--global-batch", "8", "--micro-batch", "2", "--threads", "1", "--precision", "bf16"]
    pure = [word for key, value in PURE.items() for word in ("--set", f"plan.{key}={str(value).lower()}")]
    run = ["gpt2-laptop", "--model", "tiny-llama", "--set", "cluster=null", "--learning-rate", "1e-4"]
    return [*run, *shape, *pure, "--json", "r.json", *more]


@pytest.mark.slow
def test_layouts_with_the_same_sums_have_the_same_numbers(forked, tmp_path):
    """Bit for bit: ZeRO 0 and 1, 2 and 3, one process and its pipeline; the others differ by their sums' roundings."""

    def losses(*more):
        done = forked("run", *flags("--steps", 12, *more))
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / "r.json").read_text())["measured"]["losses"]

    zero = [losses("--nproc", 2, "--zero", stage) for stage in range(4)]
    alone, piped = losses("--nproc", 1), losses("--nproc", 2, "--pp", 2)
    split = losses("--nproc", 2, "--tp", 2, "--sequence-parallel")
    assert zero[0] == zero[1]
    assert zero[2] == zero[3]
    assert alone == piped
    for each in (*zero, split):
        assert each == pytest.approx(alone, abs=2e-3)
    assert losses("--nproc", 1, "--seed", 1) != alone
    kept = losses("--nproc", 1, "--set", "plan.master_weights=true", "--set", "plan.parameter_dtype=fp32")
    assert alone == pytest.approx(kept, abs=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [["--nproc", 1], ["--nproc", 2, "--zero", "1"], ["--nproc", 2, "--zero", "3"]])
@pytest.mark.parametrize("moments", ["fp32", "bf16"])
def test_a_run_in_two_parts_has_the_losses_of_one(forked, tmp_path, layout, moments):
    """Checkpoints have moments in their dtype; rounding goes on with the step's bits."""
    kept = ["--set", f"plan.moment_dtype={moments}", *layout]
    logs = []
    for name, parts in (("whole", [8]), ("parts", [5, 8])):
        for steps in parts:
            done = forked("run", *flags("--steps", steps, "--checkpoint", name, "-o", name + "-run", *kept))
            assert done.returncode == 0, done.stderr
        rows = (tmp_path / f"{name}-run/log.jsonl").read_text().splitlines()
        logs.append([json.loads(row)["loss"] for row in rows])
    assert len(logs[0]) == 8
    assert logs[0] == logs[1]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"master_weights": None}, "master_weights = true: a run keeps parameters once"),
        ({"grad_dtype": None}, "grad_dtype = fp32: gradients have the dtype of their parameters; allowed: bf16"),
        ({"precision": "fp16"}, "precision = fp16"),
        ({"offload_optimizer": "cpu"}, "offload_optimizer: hosts update in fp32"),
        ({"sync": "local-sgd", "sync_every": 2}, "sync = local-sgd"),
        ({"lora_rank": 2}, "adapters or frozen layers"),
    ],
)
def test_what_pure_bf16_does_not_go_with_is_refused(values, words):
    """One line each."""
    from simpar.architectures.hf_config import read

    plan = Plan.model_validate({**PURE, "dp": 2, **values})
    with pytest.raises(UserError, match=r"plan\.parameter_dtype = bf16 with") as refused:
        prepare(plan, read(SHAPES["llama"], "tiny"), Training(seq_len=16, global_batch=4), 2)
    assert words in str(refused.value)
