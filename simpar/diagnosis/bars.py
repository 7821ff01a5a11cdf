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
    r"\[[^\]|%]{1,60}\](?:<std(?:out|err)>)?:?"  # [rank0]: of torchrun, [1,0]<stderr>: of mpirun, [pod/a-0/torch]
    r"|\(\w[^)|%]* pid=\d+[^)|%]*\)"  # (RayTrainWorker pid=1, ip=10.0.0.1) of Ray
    r"|\d+:(?= )"  # 0: of srun --label
    r"|[\w.-]*(?:node|gpu|host|worker|master|launcher|rank|ip-)[\w.-]*:(?= )"  # worker-0: of pdsh and DeepSpeed
    r"|[\w.-]+[-_]\d+ +\|(?= )"  # trainer-1  | of Docker
    r"|\d+(?:\.\d+){3}:(?= )"  # an address of pdsh
    r"|(?:[\w.-]+ )?[\w.-]+\[[\w.,-]+\]:(?= )"  # host python[123]: of journald and syslog, n[1-4]: of clush
    r"|[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d|\d\d:\d\d:\d\d(?= )|\d{10,13}(?:\.\d+)?(?=\s)"  # their clocks, and ts'
    r"|(?:#033)?\[\d{0,3}(?:;\d+)*m"  # a colour whose escape was written out, or lost
    r"|[\w-]*\d[\w-]* [a-z][\w-]*(?= )"  # pod container of stern
    r"|(?:INFO|NOTICE|DEFAULT)(?= )|[|>-]{1,2}(?= )"
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
_BARE = re.compile(
    r"(?<![\d.])\d{1,3}%\|[^|]*\|\s*(?P<done>\d+)/(?P<total>\d+) "
    r"\[(?P<elapsed>[\d:]+)<[^,\]]*, +(?P<rate>\d+(?:\.\d+)?)(?P<unit>s/it|it/s)[\],]"
)
"""A bar of tqdm without more than its figures; one with a name has a colon before it, whoever speaks before that."""
_LINE = re.compile(
    r"Progress on:train (?P<done>\d+(?:\.\d+)?)(?P<k>k?)it/(?P<total>[\d.]+k?)it "
    r"rate:(?P<rate>\d+(?:\.\d+)?)(?P<unit>s/it|it/s)"
)
DIGITS = 2
"""A rate of fewer digits (0.01it/s) may be half or twice as large: the clock of the bar tells more."""
BATCHES = "{} counts batches: a step that accumulates N of them takes N times as long as is said here."
JUMPED = 3.0
"""A bar has jumped where its steps would have taken this many times longer than it runs: it began in mid-run."""


class Bars(defaultdict[tuple[str, str], LoggedSteps]):
    """The steps of the bars of a log by (framework, total), and where among all draws the first and last of each is."""

    def __init__(self) -> None:
        super().__init__(LoggedSteps)
        self._drawn = 0
        self._spans: dict[tuple[str, str], tuple[int, int]] = {}

    def draw(self, key: tuple[str, str], at: int, figures: Figures) -> None:
        """Add what a bar shows of a step."""
        self._drawn += 1
        self._spans[key] = (self._spans.get(key, (self._drawn,))[0], self._drawn)
        self[key].put(at, figures)

    def is_inside(self, inner: tuple[str, str], outer: tuple[str, str]) -> bool:
        """Whether a bar is drawn in the course of another, as that of an evaluation: it begins again more often.

        If both do so as often, it is drawn between the first and the last draw of the other.
        """
        first, last = self._spans[inner]
        begun, ended = self._spans[outer]
        if last < begun or ended < first:
            return False
        falls, others = self[inner].falls, self[outer].falls
        return falls > others or (falls == others and begun < first and last < ended)


def add_bar(bars: Bars, line: str) -> bool:
    """Add what a line draws, by (framework, total) and step; whether it has a bar."""
    if match := _LINE.search(line):
        done = round(float(match["done"]) * (1000 if match["k"] else 1))
        bars.draw((LOGGABLE, match["total"]), done, _figure(match))
        return True
    if match := _RICH.search(line):
        done, total = int(match["done"]), int(match["total"])
        bars.draw((LIGHTNING, match["total"]), int(match["epoch"]) * total + done, _figure(match))
        return True
    match = _BAR.match(line, _after_speakers(line))
    if match is None:
        return _add_bare(bars, line)
    done, total = int(match["done"]), int(match["total"].replace("?", "0"))
    figures = _figure(match)
    if match["epoch"]:
        name, at = (OPENRLHF if match["rlhf"] else LIGHTNING), int(match["epoch"]) * total + done
    elif match["step"]:
        name, at = TUNE, int(match["step"])
    else:
        name, at, figures = TRAINER, done, {**figures, CLOCK: _seconds(match["elapsed"])}
    bars.draw((name, match["total"]), at, figures)
    return True


def _add_bare(bars: Bars, line: str) -> bool:
    """Add the last bar without a name in a line; whether it has one."""
    bare = [each for each in _BARE.finditer(line) if not line[: each.start()].rstrip().endswith(":")]
    if not bare:
        return False
    figures = {**_figure(bare[-1]), CLOCK: _seconds(bare[-1]["elapsed"])}
    bars.draw((TRAINER, bare[-1]["total"]), int(bare[-1]["done"]), figures)
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

    So are those that are drawn in the course of another, however long they take.

    The speed that a bar of the Trainer shows counts the steps of before where a run was resumed, for dozens of
    steps; its clock does not, and is taken instead. ``notes`` gets what is said of the bars that are taken.
    """
    timed = {key: {at: of[at] for at in of if {STEP_TIME, RATE} & {*of[at]}} for key, of in bars.items()}
    timed = {key: of for key, of in timed.items() if of}
    if not timed:
        return {}
    outer = {key for key in timed if not any(bars.is_inside(key, each) for each in timed if each != key)}
    name, total = max(timed, key=lambda key: (key[1] == str(steps), key in outer, _lasted_s(timed[key])))
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
