"""Shell scripts are read as they would run with nothing set, and never run."""

import pytest

from simpar.errors import UserError
from simpar.frameworks import read
from simpar.frameworks.shell import Script
from simpar.frameworks.shell_numbers import number

LAUNCHER = """#!/bin/bash
export CONNECTIONS=${CONNECTIONS:-1}
OUT=${OUT:-"out put"}; STRATEGY=${STRATEGY:-"optim_grads"}
KIND="fp8"; TP=${TP:-2}; TOKENS=${1:-"MOCK"}; CHECKPOINT="none"
while [[ $# -gt 0 ]]; do
  case $1 in --checkpoint) CHECKPOINT="$2"; shift 2 ;; *) exit 1 ;; esac
done
if [ ! -d "$CHECKPOINT" ]; then echo "--tensor-model-parallel-size 9"; exit 1; fi
NODES=4; WORLD=$(($NODES*8))
ARGS=(
  --tensor-model-parallel-size ${TP}   # a comment
  --pipeline-model-parallel-size $((WORLD / 8))
  --micro-batch-size 2 --bf16
  --load ${OUT}/x
)
if [ "${SHARDED:-1}" = 1 ]; then
  ARGS=("${ARGS[@]}" --use-megatron-fsdp --data-parallel-sharding-strategy ${STRATEGY})
fi
MORE=()
if [[ "$KIND" == "fp8" ]]; then MORE+=("--fp8-format hybrid" "--fp8-param-gather"); fi
if [[ "$TOKENS" == "MOCK" ]] || [[ -z "$TOKENS" ]]; then MORE+=("--mock-data"); else MORE+=("--data-path $TOKENS"); fi
"""


@pytest.mark.parametrize(
    "start",
    [
        "torchrun --nproc_per_node 8 pretrain_gpt.py \\\n  ${ARGS[@]} \\\n  ${MORE[@]}\n",
        'COMMAND="\ncd ${HERE};\npython pretrain_gpt.py ${ARGS[@]} ${MORE[@]}"\nsrun bash -c "${COMMAND}"\n',
        "sbatch <<EOF\n#!/bin/bash\nsrun python x.py ${ARGS[@]} ${MORE[@]} | tee \\${SLURM_JOB_ID}.log\nEOF\n",
        'main() { torchrun pretrain_gpt.py "${ARGS[@]}" ${MORE[*]}; }\nmain "$@"\n',
    ],
    ids=["command", "text", "here-document", "function"],
)
def test_what_a_launcher_would_start_is_read(start):
    """Defaults, arithmetic, arrays that grow, groups in quotes, decided branches, functions, here-documents."""
    found = read(LAUNCHER + start, "train.sh", "megatron")
    plan = found.plan
    assert (plan.mesh.tp, plan.mesh.pp, plan.micro_batch, plan.data_parallel.zero) == (2, 4, 2, 2)
    assert (plan.numerics.precision, plan.execution.quantized_weights) == ("fp8", "stored")
    assert {"--mock-data", "--load"} <= set(found.ignored)
    assert "--data-path" not in found.ignored


def test_what_only_running_would_tell_is_listed():
    """No branch of it is read, and a variable that it sets is not known."""
    text = """
    ARGS=(--micro-batch-size 1 --tensor-model-parallel-size 2)
    if [ -f /there ]; then ARGS+=(--sequence-parallel); PP=2; fi
    source settings.sh
    torchrun x.py ${ARGS[@]}
    """
    found = read(text, "a.sh", "megatron")
    assert not found.plan.tensor_parallel.sequence_parallel
    assert any("Line 3: " in note and "--sequence-parallel" in note for note in found.notes)
    assert any("settings.sh" in note for note in found.notes)
    with pytest.raises(UserError, match="a value that the file does not say"):
        read(f"{text.rstrip()} --pipeline-model-parallel-size $PP", "a.sh", "megatron")


@pytest.mark.parametrize("size", ["$TP", "$(nproc)", "${TP:?}", "$1", "$((N * 2))"])
def test_sizes_that_are_not_known_are_refused(size):
    """A size that comes from elsewhere is no size."""
    with pytest.raises(UserError, match="--tensor-model-parallel-size = "):
        read(f"torchrun x.py --tensor-model-parallel-size {size}", "a.sh", "megatron")


def test_several_commands_are_one_recipe_or_an_error():
    """The same twice is one; two that differ are named by what they differ in."""
    one = "torchrun x.py --micro-batch-size 1 --tensor-model-parallel-size 2\n"
    assert read(one * 2, "a.sh", "megatron").plan.mesh.tp == 2
    with pytest.raises(UserError, match=r"2 commands .* which differ in --tensor-model-parallel-size"):
        read(one + one.replace("size 2", "size 4"), "a.sh", "megatron")
    with pytest.raises(UserError, match=r"2 commands of Megatron-LM, of the turns of a loop, .* \(1, 2\): "):
        read("for tp in 1 2; do torchrun x.py --tensor-model-parallel-size $tp; done", "a.sh", "megatron")


@pytest.mark.parametrize("given", ["IFS=' '", "IFS=$' \\t'", "IFS=,", ""])
def test_a_loop_over_layouts_says_what_it_tries(given):
    """Entries of an array that are parted at a separator: every turn has its layout, and the line says which."""
    entries = '"1,1" "2,4"' if given == "IFS=," else '"1 1" "2 4"'
    text = f"""
    LAYOUTS=({entries})
    for each in "${{LAYOUTS[@]}}"; do
      {given} read -r TP PP <<< "$each"
      torchrun x.py --tensor-model-parallel-size $TP --pipeline-model-parallel-size ${{PP}}
    done
    """
    with pytest.raises(UserError, match="2 commands") as error:
        read(text, "a.sh", "megatron")
    assert "--tensor-model-parallel-size (1, 2), --pipeline-model-parallel-size (1, 4)" in str(error.value)
    assert "simpar check -- COMMAND, or a loop over one entry" in str(error.value)


@pytest.mark.parametrize(
    ("before", "size", "names"),
    [
        ("", "${JOB_GPUS:?not set}", "JOB_GPUS=VALUE"),
        (': "${JOB_GPUS:?}"', "$((JOB_GPUS / 8))", "JOB_GPUS=VALUE"),
        ("ALL=${JOB_GPUS:?give it}; TP=$((ALL / NODES))", "$TP", "JOB_GPUS=VALUE NODES=VALUE"),
        ("EACH=8", "$((JOB_GPUS / EACH))", "JOB_GPUS=VALUE"),
    ],
)
def test_what_a_size_stands_on_is_named(before, size, names):
    """The variables that nobody has set, however a script hands them on, and where to give them."""
    text = f"{before}\ntorchrun x.py --tensor-model-parallel-size {size}"
    with pytest.raises(UserError, match="a value that the file does not say; allowed: ") as error:
        read(text, "a.sh", "megatron")
    listed = str(error.value).partition("allowed: ")[2].partition(" before")[0]
    assert set(listed.split()) == set(names.split())
    assert str(error.value).endswith(f"simpar check -- {listed} a.sh, or simpar import a.sh --from NAME -- {listed}")


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("[ 3 -gt 2 ]", True), ('[[ "$A" == x* ]]', True), ('[[ "$A" != "xy" ]]', False), ("[ -z $NONE ]", True),
        ("[ -n $A ] && ! [[ $N -lt 4 ]]", True), ("(( N > 4 ))", True), ("[[ -f a || 1 -eq 1 ]]", True),
        ("[[ $A = xy || $N = 1 ]]", True), ("[[ $A = b || $N = 1 ]]", False), ("[[ $A = xy && $N = 5 ]]", True),
        ("[[ $A = xy && ( $N = 1 || $N = 2 ) ]]", False), ("[[ $A = b && -f a || $N = 5 ]]", True),
        ("[[ $A = xy && -d a ]]", None), ("[[ $A = b && -d a ]]", False), ("[[ $N -gt 4 && $A != b ]]", True),
        ("[ 5 -eq 5 -a x = z ]", None), ("[ -d here ]", None), ("grep x y", None), ('[[ "$(date)" == x ]]', None),
    ],
)  # fmt: skip
def test_conditions(condition, holds):
    """Decided where the script alone decides them."""
    script = Script(f"A=xy; N=5; R=before\nif {condition}; then R=yes; else R=no; fi", "a.sh")
    assert script.variables["R"] == [{True: "yes", False: "no", None: "${R}"}[holds]]


def test_case_and_words():
    """The first pattern that fits; words split as a shell does."""
    script = Script("S=8b\ncase $S in 7b|8b) L=32 ;; *) L=80 ;; esac\nW='a b'\nrun x$L \"$W\" $W y\\ z", "a.sh")
    assert script.commands == [["run", "x32", "a b", "a", "b", "y z"]]


def test_scripts_without_end_are_refused():
    """Functions that call themselves."""
    with pytest.raises(UserError, match="without end"):
        Script("f() { f; }\nf", "a.sh")


@pytest.mark.parametrize("grows", ["$A$A$A$A", "${A//a/aaaaaaaaaa}", "${A//a/$A}"])
def test_words_that_grow_without_end_are_refused(grows):
    """Before they are made: a word of 10**5 characters, each of them replaced by as many, has 10**10."""
    text = f"A={'a' * 100_000}\n" + f"A={grows}\n" * 5 + "run $A"
    with pytest.raises(UserError, match=r"a\.sh.*: a word of more than 1000000 characters"):
        Script(text, "a.sh")


@pytest.mark.parametrize(
    ("text", "value"),
    [("2 * 8", 16), ("(N+1)%4", 2), ("$N / 2", 2), ("${N} > 4", 1), ("M + 1", None), ("1/0", None),
     ("9 ** 9", 387420489), ("9 ** 90", None), ("2 ** -1", None),
     ("1 +", None), ("($N > 1) ? 1 : 0", 1), ("N>8?1:N>4?2:3", 2), ("N > 1 ? N > 8 ? 5 : 6 : 7", 6), ("(N>1?2:3)", 2),
     ("N > 1 && N != 5", 0), ("!N || N == 5", 1), ("M ? 1 : 2", None), ("N ? 1", None)],
)  # fmt: skip
def test_arithmetic(text, value):
    """Integers, as a shell has them."""
    assert number(text, {"N": "5"}) == value


@pytest.mark.parametrize(
    ("text", "value"), [("$[$A/($B*2)]", 4), ("$[ A - B ]", 14), ('"$[A+B]"', 18), ("0$[A/B]", 8), ("$[C+1]", None)]
)
def test_arithmetic_as_shells_before_posix_spell_it(text, value):
    """``$[...]`` is ``$((...))``, in quotes and out of them; one that is not known is left open by the file."""
    script = f"A=16\nB=2\nM={text}\ntorchrun pretrain_gpt.py --micro-batch-size $M\n"
    if value is None:
        with pytest.raises(UserError, match=r"--micro-batch-size = \$\[C\+1\]: a value that the file does not say"):
            read(script, "job.sh", "megatron")
    else:
        assert read(script, "job.sh", "megatron").plan.micro_batch == value


@pytest.mark.parametrize("section", ["ARGS", "MODEL_ARGS", None])
def test_yaml_of_arguments(section):
    """Switches are true, what is false or null is not there; Megatron-Core's own names are understood."""
    entries = {"tensor_model_parallel_size": 2, "--micro-batch-size": 4, "swiglu": "true", "bf16": "true",
               "sequence_parallel": "true", "overlap_grad_reduce": "false", "load": "${LOAD}",
               "num_moe_experts": "null"}  # fmt: skip
    indent = "  " if section else ""
    text = (f"{section}:\n" if section else "") + "".join(f"{indent}{k}: {v}\n" for k, v in entries.items())
    found = read(text, "model.yaml", "megatron")
    plan = found.plan
    assert (plan.mesh.tp, plan.micro_batch, plan.tensor_parallel.sequence_parallel) == (2, 4, True)
    assert plan.data_parallel.overlap_grad_reduce is False
    assert found.ignored == ("swiglu", "load")
    assert any("does not say the model's hidden, heads" in note for note in found.notes)
    with pytest.raises(UserError, match=r"model.yaml:\d: tensor_model_parallel_size = many: allowed: a positive"):
        read(text.replace("size: 2", "size: many"), "model.yaml", "megatron")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('f() { A=(x "$@"); }; f 1 "b c"; run "${A[@]}"', ["x", "1", "b c"]),
        ('f() { A="$*"; }; f 1 2; run "$A"', ["1 2"]),
        ('f() { A=($1 ${2:-d} $# "${@:2}" end$3); }; f 1 4; run "${A[@]}"', ["1", "4", "2", "4", "end"]),
        ('f() { local a=$1; shift; A=($a "$@"); }; a=9; f 1 2 3; run $a ${A[@]}', ["9", "1", "2", "3"]),
        ('f() { "$@"; }; f run 1', ["1"]),
        ('g() { run $1; }; f() { g "$@" x; }; f 4', ["4"]),
        ('f() { run "${1}"; }; f "$@"', ["${1}"]),
        ("set -- 1 2; for a; do A+=$a; done; run $A", ["12"]),
        ("f() { run $X; }; X=3 f; run $X", ["3"]),
        ("A=1 B=2\nrun $A $B", ["1", "2"]),
        ("A=1\nA=2 run $A", ["1"]),
        ("let A=4/2 B=A+1; ((A += 3)); run $A $B", ["5", "3"]),
        ('read -r -d "" A <<EOF\n1\n2 3\nEOF\nrun $A', ["1", "2", "3"]),
        ("read -r A B <<< '1 2 3'; run $A \"$B\"", ["1", "2 3"]),
        ("read -ra A <<< '1 2'; run \"${A[@]}\"", ["1", "2"]),
        ("A=1; read A; run $A", ["${A}"]),
        ("IFS=, read A B <<< 1,2; run $A", ["1"]),
        ("A=1; run ${A:+a} ${B:+b} ${A+c}", ["a", "c"]),
    ],
)
def test_arguments_of_functions_and_what_sets_variables(text, words):
    """A body has the arguments of its call; commands of the shell that set variables are no launches."""
    assert Script(text, "a.sh").commands[0] == ["run", *words]


def test_words_that_are_only_shown_are_no_launch():
    """The same command in an echo before it; alone it is all there is."""
    start = "torchrun x.py --micro-batch-size 1 --tensor-model-parallel-size 2"
    assert read(f"CMD='{start}'\necho \"$CMD --x\"\n$CMD", "a.sh", "megatron").plan.mesh.tp == 2
    assert read(f"echo {start}", "a.sh", "megatron").plan.mesh.tp == 2


def test_placeholders_are_words():
    """What a public script leaves to its reader is no fault of its syntax; other faults are."""
    text = 'V=<path>/v.json\nexport DATA=<path to the data>\npython train.py --data "${DATA}" --micro-batch-size 4\n'
    script = Script(text, "train.sh")
    assert script.commands[-1] == ["python", "train.py", "--data", "<path to the data>", "--micro-batch-size", "4"]
    values = Script("python train.py --tp <TP> --lr={{ lr }} --data ${{inputs.data}}/x --bf16\n", "train.sh")
    assert values.commands[-1] == [
        *("python", "train.py", "--tp", "<TP>", "--lr={{ lr }}", "--data", "${{inputs.data}}/x", "--bf16")
    ]
    inner = Script("A='--data <PATH TO data> --fp16 '\nsh -c \"python train.py $A\"\n", "train.sh")
    assert inner.commands[-1][-1] == "--fp16"
    with pytest.raises(UserError, match="not shell text"):
        Script("X=<path to data>\nif then fi\n", "train.sh")


@pytest.mark.parametrize(
    "change", ['cd -- "$(dirname "$0")" >/dev/null 2>&1 ; pwd -P', 'cd -P "$(dirname -- "$0")" &> /dev/null && pwd']
)
def test_where_a_script_lies(change, tmp_path):
    """With the options of cd and pwd that people copy."""
    path = tmp_path / "train.sh"
    path.write_text(f"HERE=$({change})\npython train.py $HERE/config.yaml\n")
    assert Script(path.read_text(), str(path)).commands[-1][-1] == f"{tmp_path}/config.yaml"


def test_comments_between_the_lines_of_a_command():
    """Substitutions of nothing, in any language; the words go on."""
    text = "run --a 1 \\\n  `# 批次大小 (batch)` \\\n  --b 2 `#  c`\necho '完成'\n"
    assert Script(text, "x.sh").commands[0] == ["run", "--a", "1", "--b", "2"]


def test_what_a_program_would_print_is_one_piece():
    """Its own options are none of the command, however the substitution stands in a word or is passed on."""
    text = """
HOST=$(hostname --ip-address)
GPUS=$(($(nvidia-smi --query-gpu=name --format=csv | wc -l) - 2))
NAME=run_g${GPUS}_x; LINES=`rocm-smi --showid | wc -l`
ARGS="--master-addr $HOST --out /out/${NAME}/y --tag $(git log --oneline)-$LINES"
eval torchrun $ARGS train.py --lines $LINES
"""
    (command,) = (words for words in Script(text, "a.sh").commands if "train.py" in words)
    assert command[0] == "torchrun"
    assert [word for word in command if word.startswith("--")] == ["--master-addr", "--out", "--tag", "--lines"]


def test_a_variable_behind_a_bracket():
    """A pattern of layers without quotes is one word, in a command and in an array."""
    text = "D=3\nM=5\nA=(--freq [0]*$D+[1]*$M --g 2)\nrun ${A[@]} [0]*$D+[1]*$M '[0]*3' \"[0]*$D\"\n"
    assert Script(text, "a.sh").commands[-1] == [
        "run",
        "--freq",
        "[0]*3+[1]*5",
        "--g",
        "2",
        "[0]*3+[1]*5",
        "[0]*3",
        "[0]*3",
    ]
