"""What a script takes from where it cannot be read: each is named, and what only sets up programs is not."""

import pytest

from simpar.frameworks.shell import Script
from simpar.frameworks.shell_gaps import account_of_gaps, gaps_of_command
from simpar.frameworks.words import WordTable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("source ./settings.sh", ["./settings.sh"]),
        (". conf/$MODEL.env", ["conf/${MODEL}.env"]),
        ("set -a; source .env; set +a", [".env"]),
        ("[ -f x.sh ] && . x.sh", ["x.sh"]),
        ("if [ -f x.sh ]; then source x.sh; fi", ["x.sh"]),
        ("eval torchrun train.py $MORE", []),
        ('eval "$(python settings.py)"', ["$(python settings.py)"]),
        ("export $(grep -v '^#' .env | xargs)", ["$(grep -v '^#' .env | xargs)"]),
        ("if [ -n \"$(hostname)\" ]; then A+=' --tp 8'; fi", ["--tp"]),
        ("while read line; do A+=\" $line\"; done < args.txt", ["${A}"]),
        ("source ~/.bashrc; . /opt/v/bin/activate; source /opt/conda/etc/profile.d/conda.sh", []),
        ("source /usr/share/modules/init/bash; eval \"$(conda shell.bash hook)\"", []),
        ("source set_env.sh; ./prepare.sh; export A=$(hostname)", []),
    ],
)  # fmt: skip
def test_what_a_script_takes_from_elsewhere(text, expected):
    """Files that it sources, text that programs print, flags of conditions that it does not decide."""
    assert list(Script(f"{text}\n", "train.sh").gaps) == expected


def test_a_file_that_is_here_is_no_gap(tmp_path, monkeypatch):
    """It is read in its place, and what it sources itself is looked up as well."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.sh").write_text("TP=8\nsource more.sh\n")
    script = Script("source settings.sh\nrun $TP\n", "train.sh")
    assert (list(script.gaps), script.commands) == (["more.sh"], [["run", "8"]])


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("train.py --bf16 ${EXTRA_ARGS}", ["${EXTRA_ARGS}"]),
        ("train.py ${MORE} --tp 8", ["${MORE}"]),
        ("train.py --bf16 ${MORE}", ["${MORE}"]),
        ("train.py --tp 8 @args.txt", ["@args.txt"]),
        ("train.py --data 1 ${A} 2 ${B} --lr ${LR}", []),
        ("train.py --tp 8 $@", []),
        ("bash wrap.sh torchrun train.py --tp 8", ["wrap.sh"]),
        ("torchrun --standalone $(cat,ranks.txt) train.py --tp 8", ["$(cat,ranks.txt)"]),
        ("torchrun ${DIST_ARGS} train.py --tp 8", ["${DIST_ARGS}"]),
        ("torchrun --nproc_per_node $(count) train.py --tp 8", []),
        ("docker run --env-file run.env image python train.py --tp 8", ["run.env"]),
    ],
)
def test_words_that_only_running_would_tell(command, expected):
    """A loose word, or one behind a switch, may hold arguments; the value of a flag that is not read does not."""
    assert list(gaps_of_command(command.split(), ("--bf16", "--tp"))) == expected


def test_gaps_decide_unless_their_flag_is_idle():
    """A condition that only adds flags without effect leaves nothing open."""
    script = Script("if [ -n \"$(hostname)\" ]; then A+=' --wandb-name x --tp 8'; fi\nsource a.sh\n", "train.sh")
    account = account_of_gaps(script.gaps, WordTable(idle=("wandb*",)))
    assert (list(account.deciding), account.is_understood) == (["--tp", "a.sh"], False)


def test_options_that_a_condition_adds_to_a_command_leave_the_rest():
    """The variable keeps what it has, and what is added is listed; a number that is written anew is unknown."""
    script = Script(
        'CMD="run --a 1"\nif [ -f /x/y ]; then\n  CMD="${CMD} --b 2"\nfi\n[ -d /z ] && CMD="--c $CMD"\n'
        'N=4\nif [ -f /x/y ]; then N="${N}8"; fi\n$CMD --n $N\n',
        "x.sh",
    )
    assert script.commands == [["run", "--a", "1", "--n", "${N}"]]
    assert {"--b", "--c"} <= set(script.gaps)
    after = Script(
        "A=1\nB=(--a)\n[ -d /z ] && A=2 || A=3\n[[ -f a ]] && B+=(--b 2)\ncd x && C=4\nrun $A ${B[@]} $C", "x.sh"
    )
    assert after.commands[-1] == ["run", "${A}", "--a", "4"]
    assert "--b" in after.gaps


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # where a checkpoint is, which only running tells: all that may stand there is listed
        (
            'if [[ -f $S/latest ]]; then C="--load $S"; else C="--load $H --no-load-rng"; fi',
            ["--load", "--no-load-rng"],
        ),
        ("C=''; [ -f $S/latest ] && C='--load x'", ["--load"]),
        # something else was there, or may come
        ("C='--bf16'; if [ -f $S/latest ]; then C='--load x'; fi", ["--load", "${C}"]),
        ("if [ -f $S/latest ]; then C='--load x'; else C=$MORE; fi", ["--load", "${C}"]),
    ],
)
def test_options_alone_of_an_open_condition_are_listed(text, words):
    """A variable that was empty and gets nothing else is no gap itself."""
    script = Script(f"{text}\ntorchrun pretrain_gpt.py --bf16 $C\n", "train.sh")
    gaps = {**script.gaps, **gaps_of_command(script.commands[-1], ("--bf16",))}
    assert list(gaps) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('if [ $1 = full ]; then o=" \\\n  --a 1"\nelif [ $1 = sel ]; then o="--b"; fi', []),
        ("case $1 in full) o=--a;; esac", []),
        ('if [ $1 = none ]; then o="--c"; elif [ $1 = x ]; then o=--a; fi', ["--c"]),
        # set before, or no option, or a name that the environment may have
        ("o=--d; if [ $1 = full ]; then o=--a; fi", ["--d"]),
        ("if [ $1 = full ]; then o=5; fi", ["${o}"]),
        ("if [ $1 = full ]; then o=$p; fi", ["${o}"]),
    ],
)
def test_options_of_branches_that_are_not_taken_are_left_out(text, words):
    """A variable of the script's own is empty where none of its branches is taken, as in the shell."""
    assert Script(f"set -- none\n{text}\nrun $o", "train.sh").commands[-1] == ["run", *words]


def test_names_in_capitals_may_be_of_the_environment():
    """What a branch that is not taken would set may be set where the script is started."""
    script = Script("set -- none\nif [ $1 = full ]; then EXTRA=--a; fi\nrun $EXTRA", "train.sh")
    assert script.commands[-1] == ["run", "${EXTRA}"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("(--nproc_per_node 8 --rdzv_id $RANDOM)", ["--nproc_per_node", "8", "--rdzv_id", "${RANDOM}"]),
        ('(--endpoint $(hostname -i):29500 --nproc_per_node 8)',
         ["--endpoint", "$(hostname -i):29500", "--nproc_per_node", "8"]),
        ('"$MORE --nproc_per_node 8"', ["${MORE}", "--nproc_per_node", "8"]),
        ('"--name ${UNTOLD//a/b c} --nproc_per_node 8"', ["--name", "${UNTOLD//a/b c}", "--nproc_per_node", "8"]),
        ('"$(cat a b) --nproc_per_node 8"', ["$(cat a b)", "--nproc_per_node", "8"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("put_in", ["${A[@]}", '"${A[@]}"', "$A", "${A[*]}"])
def test_a_list_with_an_unknown_word_is_several_words(values, expected, put_in):
    """What only running would tell is left as one word among the others, as the shell has it."""
    is_array = values.startswith("(")
    if put_in.startswith('"') and not is_array:
        expected = [" ".join(expected)]
    elif put_in == "$A" and is_array:
        put_in = "${A[@]}"
    assert Script(f"A={values}\nrun {put_in}\n", "train.sh").commands == [["run", *expected]]
