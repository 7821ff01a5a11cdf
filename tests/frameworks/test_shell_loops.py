"""Loops of scripts, and what sets variables by names that are worked out: as a shell runs them."""

import pytest

from simpar.frameworks.shell import Script
from simpar.preflight.given import given_text

GETOPTS = "set -- -t 2 -p4 x\nwhile getopts :t:p:h o; do case $o in t) TP=$OPTARG;; p) PP=$OPTARG;; esac; done\n"
CASES = 'case "$1" in -t|--tp) TP="$2"; shift 2;; --pp=*) PP="${1#*=}"; shift;; *) shift;; esac'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # arguments by name, read until there are none, or until one that is no option
        (f"set -- --tp 2 x --pp=4\nwhile [[ $# -gt 0 ]]; do {CASES}; done", ["2", "4"]),
        (f'set -- -t 2 --pp=4\nread_all() {{ while [ "$#" -gt 0 ]; do {CASES}; done; }}\nread_all "$@"', ["2", "4"]),
        ("set -- --tp 2 -- 9\nwhile true; do case $1 in --tp) TP=$2; shift 2;; *) shift; break;; esac; done\nPP=$1",
         ["2", "9"]),
        (GETOPTS + "shift $((OPTIND - 1)); PP=$PP$1", ["2", "4x"]),
        ("set -- -vt 2 -x\nwhile getopts vt: o; do case $o in v) PP=4;; t) TP=$OPTARG;; ?) PP=$PP$OPTARG;; esac; done",
         ["2", "4x"]),
        # names that are worked out
        ('for a in TP=2 PP=4; do k=$(echo $a | cut -f1 -d=); l=${#k}; v="${a:$l+1}"; export "$k"="$v"; done',
         ["2", "4"]),
        ('for a in TP=2 PP=4; do export "$a"; done', ["2", "4"]),
        ('set -- --TP 2 --PP 4\nwhile [ $# -gt 0 ]; do v="${1/--/}"; declare $v="$2"; shift 2; done', ["2", "4"]),
        # loops that count or wait
        ("TP=8; PP=0; until [ $TP -le 2 ]; do TP=$((TP / 2)); PP=$((PP + 1)); done", ["2", "2"]),
        ("for TP in 1 2 4; do if [ $TP -ge 2 ]; then break; fi; done; PP=4", ["2", "4"]),
        ("for i in 1 2 4; do [ $i = 4 ] && continue; TP=$i; done; PP=4", ["2", "4"]),
        ("for ((TP = 1; TP < 9; TP *= 2)); do if ((TP == 2)); then break; fi; done; PP=4", ["2", "4"]),
        ("TP=2; PP=4; while [ -f /job/lock ]; do sleep 5; done", ["2", "4"]),
        # over the arguments of a script that is given none
        ("TP=2; for a in $*; do TP=4; done; for a in \"$@\"; do TP=4; done; for a in ${@:2}; do TP=4; done; PP=3",
         ["2", "3"]),
        ("for a in $*; do case $a in --m=*) m=${a#*=};; esac; done; TP=2; [[ $m == x ]] && TP=8; PP=4", ["2", "4"]),
        ("f() { for a in \"$@\"; do TP=$a; done; }; f 4 2; PP=3", ["2", "3"]),
        # of several loops
        ("for a in 1 2; do for b in 3 4; do TP=$a$b; break 2; done; done; PP=$a", ["13", "1"]),
        ("for a in 1 2; do for b in 3 4; do [ $b = 4 ] && continue 2; TP=$a$b; done; TP=x; done; PP=$a", ["23", "2"]),
        ("i=0; while [ $i -lt 3 ]; do i=$((i+1)); for b in 3 4; do TP=$i$b; [ $i = 2 ] && break 2; done; done; PP=$i",
         ["23", "2"]),
        ("for ((i=0;i<3;i++)); do for b in 3 4; do TP=$i$b; [ $i = 1 ] && break 2; done; done; PP=$i", ["13", "1"]),
        ("for a in 1 2; do for b in 3 4; do for c in 5 6; do TP=$a$b$c; break 2; done; done; done; PP=$b",
         ["235", "3"]),
        ("for a in 1 2; do for b in 3 4; do TP=$a$b; break 9; done; done; PP=$a", ["13", "1"]),
        # whether a turn ends there is not decided
        ("for a in 1 2 4; do TP=$a; [ -f x ] && break; done; PP=3", ["${TP}", "3"]),
        ("TP=1; for a in 1 2 4; do [ -f x ] && continue; TP=$a; done; PP=$a", ["${TP}", "4"]),
        ("TP=1; for a in 1 2 4; do if [ -f x ]; then break; fi; TP=$a; done; PP=3", ["${TP}", "3"]),
        ("for a in 1 2; do for b in 3 4; do [ -f x ] && break 2; TP=$a$b; done; TP=7; done; PP=3", ["${TP}", "3"]),
        ("TP=1; for ((a=1;a<4;a++)); do [ -d x ] && break; TP=$a; done; PP=3", ["${TP}", "3"]),
        ("TP=1; for a in 1 2 4; do [ -d x ] && { TP=4; break; }; done; PP=3", ["${TP}", "3"]),
        ("TP=1; for a in 1 2 4; do grep -q x y && { TP=4; break; }; done; PP=3", ["${TP}", "3"]),
        ("TP=1; PP=3; for a in 1 2 4; do [ -d x ] && break; done; for a in 8; do TP=$a; done", ["8", "3"]),
        ("TP=1; PP=3; for a in 1 2; do python t.py && break; sleep 3; done", ["1", "3"]),
        # that another turn follows is not decided
        ("TP=2; PP=4; while true; do PP=5; [ -f x ] && break; done", ["2", "${PP}"]),
        ("TP=2; PP=1; while true; do PP=4; done", ["2", "${PP}"]),
        # letters of a word
        ("S=2x4; TP=${S:0:1}; PP=${S: -1}", ["2", "4"]),
        ("S=abc24; L=3; TP=${S:$L:1}; PP=${S:L+1}", ["2", "4"]),
        ("S=ab; L=1; TP=${S:$L+0}; PP=${X:-4}", ["b", "4"]),
        ("S=ab; TP=${S: -3}; PP=${S:1}", ["b"]),
    ],
)  # fmt: skip
def test_loops_are_read_as_they_run(text, expected):
    """Each is what bash prints of it; ``declare "$NAME=$VALUE"``, ``until`` and ``break`` were passed over."""
    assert Script(f"{text}\nrun $TP $PP", "train.sh").commands[-1] == ["run", *expected]


@pytest.mark.parametrize(
    "loop",
    [
        "while true; do {} && break; sleep 5; done",
        "i=0; while [ $i -lt 3 ]; do {} && break; i=$((i + 1)); done",
        "i=0; until [ $i -ge 3 ]; do {}; i=$((i + 1)); done",
        "until {}; do sleep 5; done",
        "for i in 1 2 3; do {} && break; sleep 5; done",
        "[ -d data ] && {{ {}; }}",
    ],
)
def test_a_launch_that_is_tried_again_is_one(loop):
    """As often as it is started again, it is the same job."""
    launch = "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --micro-batch-size 1 --bf16"
    assert given_text(loop.format(launch), "train.sh").found.plan.tp == 2


def test_what_exports_an_unknown_name_is_a_gap():
    """It may set what decides."""
    assert Script('export "$(make_env)"\nrun', "train.sh").gaps


def test_options_of_a_script_that_is_given_none(tmp_path):
    """It is read as started without any, as one that reads ``$1`` is."""
    from simpar.preflight.given import given_file

    script = tmp_path / "train.sh"
    script.write_text(
        "TP=2\nwhile getopts t: o; do case $o in t) TP=$OPTARG;; esac; done\ntorchrun --nproc_per_node 8 "
        "pretrain_gpt.py --tensor-model-parallel-size $TP --micro-batch-size 1 --bf16\n"
    )
    given = given_file(str(script))
    assert (given.found.plan.tp, "started without arguments" in given.launch.notes[0]) == (2, True)
