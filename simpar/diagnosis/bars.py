"""Progress bars in logs: tqdm's, as the Trainer, Lightning, torchtune and OpenRLHF draw them, and tqdm_loggable's.

Launchers write who speaks before each line (torchrun, srun, mpirun, pdsh, Ray, Kubernetes, Docker): it is passed over.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from statistics import median

from simpar.diagnosis.log_run import CLOCK, RATE, STEP_TIME, Figures, LoggedSteps

TRAINER, LIGHTNING, TUNE, LOGGABLE, OPENRLHF = "Hugging Face Trainer", "Lightning", "torchtune", "Levanter", "OpenRLHF"
HINTS = ("/it", "it/s")
_RICH = re.compile(
    r"Epoch (?P<epoch>\d+)/\S+\s+[━╸╺ ]*(?P<done>\d+)/(?P<total>\d+)\s+[\d:]+ • [-\d:]+ +"
    r"(?P<rate>\d+(?:\.\d+)?)(?P<unit>it/s)"
)
"""Lightning's RichProgressBar; bars of validation have another name."""
SPEAKER = re.compile(
    r"(?:"
    r"\[[^\]\s|%]{1,60}\](?:<std(?:out|err)>)?:?"  # [rank0]: of torchrun, [1,0]<stderr>: of mpirun, [pod/a-0/torch]
    r"|\(\w[^)|%]* pid=\d+[^)|%]*\)"  # (RayTrainWorker pid=1, ip=10.0.0.1) of Ray
    r"|\d+:(?= )"  # 0: of srun --label
    r"|[\w.-]*(?:node|gpu|host|worker|master|launcher|rank|ip-)[\w.-]*:(?= )"  # worker-0: of pdsh and DeepSpeed
    r"|[\w.-]+-\d+ +\|(?= )"  # trainer-1  | of Docker
    r"|\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d[.,\d]*(?:Z|[+-]\d\d:?\d\d| [A-Z]{3,4}\b)?:?"  # a clock
    r"|std(?:out|err) [FP](?= )"  # of containerd, after its clock
    r")\s*"
)
MOST_SPEAKERS = 4
_BAR = re.compile(
    r"\s*(?P<what>|Train|Training|Steps|(?P<rlhf>Train step of epoch )?(?(rlhf)|Epoch )(?P<epoch>\d+)"
    r"|\d+\|(?P<step>\d+)\|Loss: \S+?):?\s*"
    r"(?:\d{1,3}%\|[^|]*)?\|?\s*(?P<done>\d+)/(?P<total>\d+|\?) "
    r"\[(?P<elapsed>[\d:]+)<[^,\]]*, +(?P<rate>\d+(?:\.\d+)?)(?P<unit>s/it|it/s)"
)
"""A progress bar of tqdm: s/it where a step takes longer than a second. Bars of loading have other names."""
_LINE = re.compile(
    r"Progress on:train (?P<done>\d+(?:\.\d+)?)(?P<k>k?)it/(?P<total>[\d.]+k?)it "
    r"rate:(?P<rate>\d+(?:\.\d+)?)(?P<unit>s/it|it/s)"
)
DIGITS = 2
"""A rate of fewer digits (0.01it/s) may be half or twice as large: the clock of the bar tells more."""
BATCHES = "{} counts batches: a step that accumulates N of them takes N times as long as is said here."
JUMPED = 3.0
"""A bar has jumped where its steps would have taken this many times longer than it runs: it began in mid-run."""

Bars = defaultdict[tuple[str, str], LoggedSteps]


def add_bar(bars: Bars, line: str) -> bool:
    """Add what a line draws, by (framework, total) and step; whether it has a bar."""
    if match := _LINE.search(line):
        done = round(float(match["done"]) * (1000 if match["k"] else 1))
        bars[LOGGABLE, match["total"]].put(done, _figure(match))
        return True
    if match := _RICH.search(line):
        done, total = int(match["done"]), int(match["total"])
        bars[LIGHTNING, match["total"]].put(int(match["epoch"]) * total + done, _figure(match))
        return True
    match = _BAR.match(line, _after_speakers(line))
    if match is None:
        return False
    done, total = int(match["done"]), int(match["total"].replace("?", "0"))
    figures = _figure(match)
    if match["epoch"]:
        name, at = (OPENRLHF if match["rlhf"] else LIGHTNING), int(match["epoch"]) * total + done
    elif match["step"]:
        name, at = TUNE, int(match["step"])
    else:
        name, at, figures = TRAINER, done, {**figures, CLOCK: _seconds(match["elapsed"])}
    bars[name, match["total"]].put(at, figures)
    return True


def _after_speakers(line: str) -> int:
    """Where a line goes on behind those who speak."""
    at = len(line) - len(line.lstrip())
    for _ in range(MOST_SPEAKERS):
        match = SPEAKER.match(line, at)
        if match is None:
            break
        at = match.end()
    return at


def _figure(match: re.Match[str]) -> Figures:
    rate, told = float(match["rate"]), match.groupdict()
    is_coarse = len(match["rate"].replace(".", "").lstrip("0")) < DIGITS and match["unit"] == "it/s" and rate < 1
    if is_coarse and told.get("elapsed") and int(told["done"]) and (elapsed := _seconds(str(told["elapsed"]))):
        return {STEP_TIME: elapsed / int(told["done"])}
    return {STEP_TIME if match["unit"] == "s/it" else RATE: rate} if rate else {}


def _seconds(elapsed: str) -> float:
    """Of ``2:05:03``."""
    result = 0
    for part in elapsed.split(":"):
        result = 60 * result + int(part or 0)
    return float(result)


def longest(bars: Bars, steps: int, resumed: bool, notes: list[str]) -> dict[str, LoggedSteps]:
    """The bars of training: those with as many steps as the log names, or that ran longest; others are evaluations.

    The speed that a bar of the Trainer shows counts the steps of before where a run was resumed, for dozens of
    steps; its clock does not, and is taken instead. ``notes`` gets what is said of the bars that are taken.
    """
    timed = {key: {at: of[at] for at in of if {STEP_TIME, RATE} & {*of[at]}} for key, of in bars.items()}
    timed = {key: of for key, of in timed.items() if of}
    if not timed:
        return {}
    name, total = max(timed, key=lambda key: (key[1] == str(steps), _lasted_s(timed[key])))
    drawn = timed[name, total]
    notes.extend([*bars[name, total].notes(), *([BATCHES.format(name)] if name in (LIGHTNING, OPENRLHF) else [])])
    by_clock = name == TRAINER and (resumed or _jumped(drawn))
    return {
        name: LoggedSteps({at: {key: of[key] for key in of if (key == CLOCK) == by_clock} for at, of in drawn.items()})
    }


def _lasted_s(drawn: Mapping[int, Figures]) -> float:
    """Seconds of the steps of a bar."""
    return (max(drawn) - min(drawn) + 1) * median(map(_step_s, drawn.values()))


def _step_s(figures: Figures) -> float:
    return figures.get(STEP_TIME) or 1 / figures[RATE]


def _jumped(drawn: Mapping[int, Figures]) -> bool:
    """Whether the first bar has more steps than its clock has time for, by the speed of the last one."""
    first, last = min(drawn), max(drawn)
    return last > first and first * _step_s(drawn[last]) > JUMPED * max(drawn[first][CLOCK], 1.0)
