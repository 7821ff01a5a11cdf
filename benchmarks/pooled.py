"""Pooled parameters: physics of devices, what kinds of stacks have in common, and small departures that runs pay for.

Logarithms of all parameters are sums of effects: a general one (of the clock that power leaves, of a kind of stack),
and departures of one device or stack. General effects have wide priors with a reason; departures are drawn to nought by
a spread that the runs themselves tell (expectation maximisation). So a stack of few runs is what its kind is like, and
nothing has bounds. Runs enter by their sensitivities: a fit is a penalised robust least squares, seconds in place of
hours, exact where nothing bends, and repeated from where it ended where something does (fit_runs.py).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from calibrate_uncertainty_rows import Run
from numpy.typing import NDArray

from simpar.hardware.device import load_device
from simpar.learning.parameters import ATTENTION, CLOCKS, Name, bounds_of
from simpar.stacks.stack import load_stack
from simpar.units import MS, NS, TERA, US

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
MOST_RUNS = {"ultrascale-playbook": 100, "Megatron-Bridge performance summary": 80,
             "NVIDIA dgxc-benchmarking READMEs": 60}  # fmt: skip
USUAL_RUNS = 40
"""Runs of one source that count as so many in a fit, whatever there are."""
NOISE, FAR = 0.06, 0.12  # spread of a run in a fit, and from where on a run counts less
PASSES, MOST = 12, 0.5  # of the robust fit, and how far an effect moves in one
SOURCE = 0.1  # what runs of one source share beyond their stack, of stacks that share a number: as of a clock
FREEDOM = 4.0  # of that distribution
EACH = 1.0  # how many departures a spread counts for that was expected before any
ROUNDS = 30  # of estimates of spreads
LEAST_TOLD = 1.0  # parameters that runs tell no better than within a factor of e are left as they are
HELD = 0.01  # within which parameters that stay are met, as logarithms
STIFF = 1e4  # how closely effects add up to values, over their spreads


@dataclass(frozen=True)
class General:
    """What is known of an effect before any run: its usual value, how far that may be off (as a logarithm), and why."""

    usual: float
    off_by: float
    reason: str


GENERAL = {
    "sustained_clock": General(0.8, 0.2, "of a device of POWER W a TFLOP/s"),
    "unthrottled": General(1.25, 0.1, "over that of a GPU: what it is a share of was not faster"),
    "sustained_clock power": General(np.exp(1 / 3), 0.15, "power of a clock grows with its cube or less"),
    "sustained_clock_fp8": General(1.0, 0.05, "over that of 16 bits: both end at the same power"),
    "sustained_clock_fp4": General(1.0, 0.1, "over that of 8 bits"),
    "launch.kernel_overhead": General(1.05, 0.1, "casts and copies that no list of operators has"),
    "launch.host_time_per_kernel_s": General(15 * US, 0.5, "eager launches from Python take 5 to 50 us"),
    "launch.step_overhead_s": General(40 * MS, 0.7, "clipping, logging, data"),
    "launch.host_time_per_collective_s": General(250 * US, 1.0, ""),
    "launch.message_s": General(1 * MS, 1.0, ""),
    "launch.shard_copy_s": General(5 * US, 0.5, "PyTorch takes a few microseconds to launch a copy"),
    "launch.host_time_per_module_s": General(350 * US, 0.4, "fetch, trace and release of ZeRO-3 in Python"),
    "launch.host_time_per_unit_s": General(800 * US, 0.5, "hooks of FSDP2 on a CPU take 0.7 to 1.9 ms a pass"),
    "launch.host_time_per_array_s": General(100 * US, 0.7, "ten launches: AdamW in a loop on a CPU"),
    "experts.overhead": General(1.15, 0.15, "copies, casts and weighting of routed tokens"),
    "experts.sync_s": General(0.2 * MS, 1.0, "a read back from the device"),
    "experts.row_s": General(2 * NS, 1.0, "rows that are moved one by one"),
    "experts.exchange_host_s": General(0.5 * MS, 1.0, ""),
    ATTENTION: General(0.65, 0.3, "a Triton kernel over the device's fastest"),
    "jobs.in_training.far_hop_us": General(100.0, 1.0, ""),
    "jobs.disturbed.collectives.member_us": General(200.0, 1.0, ""),
    "jobs.disturbed.collectives.far_member_us": General(200.0, 1.0, ""),
}
ARCHITECTURES = (
    (r"a100|a800", "Ampere"), (r"h100|h200|h20|h800", "Hopper"), (r"g?b[23]00(-sxm)?$", "Blackwell"),
    (r"mi3[02]", "CDNA 3"),
)  # fmt: skip
UNTHROTTLED = r"tpu|b200-sxm-throttled"
"""Devices whose clock is a share of what was not timed at the boost clock: TPUs, and a board that throttled then."""
TIMED_THROTTLED = "b200-sxm-throttled"
"""The board whose shares have its power in them already; what a TPU may draw counts as on a GPU."""
EXPECTED = {
    "architecture": 0.1,
    "sustained_clock": 0.07, "sustained_clock_fp8": 0.05, "sustained_clock_fp4": 0.05, "launch.kernel_overhead": 0.07,
    "launch.host_time_per_kernel_s": 0.5, "launch.step_overhead_s": 0.5, "launch.host_time_per_array_s": 0.7,
    "experts.overhead": 0.1,
    "experts.sync_s": 0.7, "experts.row_s": 0.7, "experts.exchange_host_s": 0.7,
}  # fmt: skip
"""Spreads of departures before any run is seen, as logarithms; parameters that are not here do not depart."""
SET = ("architecture", "sustained_clock_fp8", "sustained_clock_fp4")
"""Spreads that are what was expected: one die at one limit ends at the same power in 16 bits and in 8, which two
devices of few runs would outvote."""
BY_KIND = ("launch.kernel_overhead", "launch.step_overhead_s")
"""What stacks like Megatron, stacks like FSDP and those of a compiler have a general effect of their own of."""
OF_EAGER = ("launch.kernel_overhead", "launch.host_time_per_kernel_s")
"""What eager stacks have in common without departures: the same kernels of the same models, launched by the same
PyTorch, whatever shards their parameters (whose hooks have times of their own)."""
COMPILED = ("maxtext", "paxml")
"""Stacks whose whole step a compiler lowers: no module runs by itself, with copies and casts in front of it."""
EAGER = ("huggingface", "deepspeed", "torchtune", "verl")
"""Stacks whose copies and casts are listed kernel by kernel, for nothing of a layer is fused."""
TORCH = ("internevo",)
"""Stacks with shards like Megatron's whose layers are PyTorch's modules, as those of FSDP are."""
ORDINARY_STACKS = ("huggingface", "deepspeed", "internevo", "paxml")
"""Stacks that runs as most people do them tell of."""
FEW_RUNS = ("v100-sxm2-32gb", "v100-sxm3-32gb", "mi250x", "tpu-v5e", "tpu-v6e")
"""Devices whose clock fit_devices.py fits: a few runs, mostly of one source."""
POWER = 0.5  # W a TFLOP/s of 16 bits, of which the general clock is
PRODUCTS_HZ: dict[str, tuple[float, float]] = {"mi300x": (1.207e9, 1.23e9), "mi325x": (1.447e9, 1.464e9)}
"""Median clocks of boards with one die in long products of 16 and of 8 bits, warm and with values as in models [AMD,
Measuring Max-Achievable FLOPs, part 2 (2025), table 1]: what they tell of each other, no law of power has to."""


def power_of(device: str) -> float:
    """What a device may draw beyond idling over its peak in 16 bits, W a TFLOP/s."""
    known = load_device(device)
    assert known.power, "devices that runs are of say what they may draw"
    peak = max(known.peak_flop_per_s.get(name, 0.0) for name in ("bf16", "fp16"))
    return (known.power.limit - known.power.idle) / (peak / TERA)


def architecture(device: str) -> str:
    """What devices with the same multiprocessors have in common; a board of its own where none is known."""
    return next((name for pattern, name in ARCHITECTURES if re.match(pattern, device)), f"the board {device}")


def like_measured(device: str, known: Mapping[Name, float]) -> tuple[str, dict[str, float]] | None:
    """(Board of the same die that runs were fitted on, clocks of this one): its own times those of long products.

    None where no such clocks are published of both, or where nothing is fitted to the other either.
    """
    own = PRODUCTS_HZ.get(device)
    for other, clocks_hz in PRODUCTS_HZ.items():
        fitted = [known.get(("device", other, key)) for key in CLOCKS[:2]]
        if own is None or other == device or fitted[0] is None:
            continue
        eight = fitted[1] or fitted[0]
        ratios = [mine / theirs for mine, theirs in zip(own, clocks_hz, strict=True)]
        values = [clock * ratio for clock, ratio in zip((fitted[0], eight), ratios, strict=True)]
        return other, dict(zip(CLOCKS, values, strict=False))
    return None


def kind_of(stack: str) -> str:
    """Whose kernels those of a stack are like."""
    if stack in EAGER:
        return "eager"
    if stack in TORCH:
        return "fsdp"
    return "xla" if stack in COMPILED else load_stack(stack).data_parallel


def shared_effect(key: str, stack: str) -> str:
    """The general effect that a parameter of a stack has in common with others."""
    by_kind = key in BY_KIND or (key in OF_EAGER and stack in EAGER)
    return f"{key} like {kind_of(stack)}" if by_kind else key


def effects_of(name: Name) -> Iterator[tuple[str, str, float]]:
    """(Key of the general effect or of the spread, effect, factor) that a parameter's logarithm is the sum of."""
    kind, part, key = name
    key = ATTENTION if key.startswith(ATTENTION) else key
    if kind == "device":
        for clock in CLOCKS[: CLOCKS.index(key) + 1]:
            yield clock, clock, 1.0
            yield clock, f"{clock} of {part}", 1.0
        if re.match(UNTHROTTLED, part):
            yield "unthrottled", "unthrottled", 1.0
        else:
            yield "architecture", f"sustained_clock of {architecture(part)}", 1.0
        if not re.match(TIMED_THROTTLED, part):
            yield "sustained_clock power", "sustained_clock power", float(np.log(power_of(part) / POWER))
        return
    yield key, shared_effect(key, part) if key != ATTENTION else ".".join(name), 1.0
    if key in EXPECTED and not (key in OF_EAGER and part in EAGER):
        yield key, f"{key} of {part}", 1.0


def highest(name: Name) -> float:
    """The highest value of a clock, but that of a profile with the shares of a board with less power; else none."""
    return bounds_of(name).high if name[2] in CLOCKS[:1] else float("inf")


def tails(departures: Floats) -> Floats:
    """How much departures of so many spreads count: Student's distribution, for one stack may be unlike all others."""
    return np.asarray((FREEDOM + 1) / (FREEDOM + departures**2))


def told_by(runs: Sequence[Run]) -> dict[Name, float]:
    """How well runs tell each parameter alone: one over the variance of its logarithm.

    Of runs that are fitted to, and what they may tell.
    """
    found: dict[Name, float] = defaultdict(float)
    for run in runs:
        for name, (value, slope) in run.slopes.items():
            if run.fitted and tells(run, name):
                found[name] += (value * slope / NOISE) ** 2
    return found


def tells(run: Run, name: Name) -> bool:
    """Whether a run may tell a parameter: ordinary ones tell of their own stacks alone.

    Clocks and vendors' stacks are for tuned runs to tell, whose code wastes the least.
    """
    return name[1] not in FEW_RUNS and (run.population == "tuned" or name[1] in ORDINARY_STACKS)


class Pool:
    """The fit of all parameters to the sensitivities of runs.

    ``names`` are parameters, ``values`` theirs in the profiles; ``effects`` what their logarithms are sums of.
    """

    def __init__(self, runs: Sequence[Run], only: Sequence[str] = ()) -> None:
        """The fit to runs; with ``only``, parameters of these parts alone move and all others stay as they are."""
        self.runs = runs
        self.names = sorted(name for name, told in told_by(runs).items() if told > LEAST_TOLD)
        place = {name: at for at, name in enumerate(self.names)}
        self.slopes = np.zeros((len(runs), len(self.names)))
        self.values = np.zeros(len(self.names))
        for at, run in enumerate(runs):
            for name, (value, slope) in run.slopes.items():
                if name in place and tells(run, name):
                    self.slopes[at, place[name]], self.values[place[name]] = slope, value
        self.held = np.array([bool(only) and name[1] not in only for name in self.names])
        self.slopes[:, self.held] = 0.0
        self.adds = np.array([name[2].endswith(("_s", "_us")) for name in self.names])
        self.errors = np.array([run.error for run in runs], dtype=np.float64)
        counts = Counter(run.source for run in runs)
        self.weight = np.array([min(1.0, MOST_RUNS.get(r.source, USUAL_RUNS) / counts[r.source]) for r in runs])
        parts = [list(effects_of(name)) for name in self.names]
        keys = {effect: key for found in parts for key, effect, _ in found}
        self.effects, self.keys = list(keys), list(keys.values())
        self.sums = np.zeros((len(self.names), len(self.effects)))
        column = {effect: at for at, effect in enumerate(self.effects)}
        for row, found in enumerate(parts):
            for _, effect, factor in found:
                self.sums[row, column[effect]] = factor
        self.departs = np.array([self._departs(effect) for effect in self.effects])
        self.offsets = self._offsets()

    def _offsets(self) -> Floats:
        """By how much the departure of every source of eager runs moves the logarithms of their predictions."""
        sources = sorted({run.source for run in self.runs if run.traits.stack in EAGER})
        result = np.zeros((len(self.runs), len(sources)))
        for at, run in enumerate(self.runs):
            if run.source in sources:
                value, slope = run.slopes.get(("stack", run.traits.stack, OF_EAGER[0]), (0.0, 0.0))
                result[at, sources.index(run.source)] = value * slope
        return result

    def _departs(self, effect: str) -> bool:
        """Whether an effect is a departure of one device or stack: a general one is named by its key, or its kind."""
        return " of " in effect

    @cached_property
    def prior(self) -> tuple[Floats, Floats]:
        """(Mean, spread) of every effect before any run."""
        means, spreads = [], []
        for key, departs in zip(self.keys, self.departs.tolist(), strict=True):
            means.append(0.0 if departs else float(np.log(GENERAL[key].usual)))
            spreads.append(EXPECTED[key] if departs else GENERAL[key].off_by)
        return np.array(means), np.array(spreads)

    def fit(self, used: Bools, spreads: Mapping[str, float] | None = None) -> Fitted:
        """The most probable effects under some of the runs; ``spreads`` of departures where they are known already."""
        mean, spread = self._prior_with(spreads or {})
        effects = self._close(mean, spread)
        for _ in range(ROUNDS if spreads is None else 1):
            effects, sure, told = self._solved(used, effects, spread)
            if spreads is None:
                spread = self._spreads(effects, np.diag(sure), spread)
        found = {key: float(spread[at]) for at, key in enumerate(self.keys) if self.departs[at]}
        variances = np.diag(self.sums @ sure @ self.sums.T)
        values = np.where(self.held, self.values, np.exp(self.sums @ effects))
        return Fitted(values, np.sqrt(variances), effects, found, told)

    def _solved(self, used: Bools, effects: Floats, spread: Floats) -> tuple[Floats, Floats, float]:
        """Gauss-Newton from some effects: the most probable ones, their covariance, and how many numbers runs tell."""
        mean = self.prior[0]
        usual = spread
        offsets, size = self.offsets[used], len(effects)
        shared = np.zeros(offsets.shape[1])
        for _ in range(PASSES):
            spread = np.where(self.departs, usual / np.sqrt(tails((effects - mean) / usual)), usual)
            values = np.exp(self.sums @ effects)
            left = self.errors[used] - self.moved(values)[used] - offsets @ shared
            weight = self.weight[used] / (1.0 + (left / FAR) ** 2) / NOISE**2
            table = self._gains(values)[used] @ self.sums
            both = np.hstack([table, offsets]) * weight[:, None]
            told = both.T @ np.hstack([table, offsets])
            kept = self.sums[self.held] / HELD  # parameters that stay tell of what others are like
            off = (np.log(self.values[self.held]) - self.sums[self.held] @ effects) / HELD
            normal = told + np.diag(np.concatenate([1.0 / spread**2, np.full(len(shared), SOURCE**-2.0)]))
            normal[:size, :size] += kept.T @ kept
            pull = both.T @ left
            pull[:size] += (mean - effects) / spread**2 + kept.T @ off
            pull[size:] -= shared / SOURCE**2
            moves = np.clip(np.linalg.solve(normal, pull), -MOST, MOST)
            effects, shared = effects + moves[:size], shared + moves[size:]
        sure = np.linalg.inv(normal)
        return effects, sure[:size, :size], float(np.trace((sure @ told)[:size, :size]))

    def _spreads(self, effects: Floats, sure: Floats, spread: Floats) -> Floats:
        found = spread.copy()
        for key in set(self.keys) - set(SET):
            mine = self.departs & (np.array(self.keys) == key)
            if mine.any():
                squares = effects[mine] ** 2
                squares = tails(effects[mine] / spread[mine]) * squares + sure[mine]
                found[mine] = np.sqrt((squares.sum() + EACH * EXPECTED[key] ** 2) / (mine.sum() + EACH))
        return found

    def at(self, values: Floats, errors: Floats) -> Pool:
        """The pool where parameters have other values, under which runs were predicted anew: errors of all runs."""
        moved = copy(self)
        moved.values, moved.errors = values, errors
        return moved

    def loss(self, spreads: Mapping[str, float]) -> float:
        """What the values cost: errors of all runs, and departures by their spreads."""
        far = self.weight * FAR**2 * np.log1p((self.errors / FAR) ** 2)
        mean, spread = self._prior_with(spreads)
        effects = self._close(mean, spread)
        return float(far.sum() / NOISE**2 + np.sum(((effects - mean) / spread) ** 2))

    def moved(self, values: Floats) -> Floats:
        """By how much other values move the logarithm of every prediction.

        What adds a time moves it by its own amount, what multiplies times by its logarithm.
        """
        amounts = np.where(self.adds, values - self.values, self.values * np.log(values / self.values))
        return np.asarray(self.slopes @ amounts)

    def _gains(self, values: Floats) -> Floats:
        """By how much logarithms of parameters move the logarithm of every prediction, at some values."""
        return np.asarray(self.slopes * np.where(self.adds, values, self.values))

    def _close(self, mean: Floats, spread: Floats) -> Floats:
        """The most probable effects that add up to the values."""
        exact = np.vstack([self.sums * STIFF, np.diag(1 / spread)])
        target = np.concatenate([np.log(self.values) * STIFF, mean / spread])
        return np.asarray(np.linalg.lstsq(exact, target, rcond=None)[0])

    def consistent(self) -> Floats:
        """The values next to those of the profiles that effects can add up to: what stacks share is one number."""
        return np.where(self.held, self.values, np.exp(self.sums @ self._close(*self.prior)))

    def _prior_with(self, spreads: Mapping[str, float]) -> tuple[Floats, Floats]:
        """(Mean, spread) of every effect, departures as they were found to spread."""
        mean, spread = self.prior[0], self.prior[1].copy()
        for key, known in spreads.items():
            spread[self.departs & (np.array(self.keys) == key)] = known
        return mean, spread


@dataclass(frozen=True)
class Fitted:
    """What a fit found: values of parameters, standard deviations of their logarithms, effects, spreads by key.

    ``told`` is how many numbers the runs tell: that of free ones that would fit as well.
    """

    values: Floats
    deviations: Floats
    effects: Floats
    spreads: Mapping[str, float]
    told: float
