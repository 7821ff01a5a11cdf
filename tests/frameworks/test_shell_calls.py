"""What a script starts is read in its place, and what only works on words and paths is worked out."""

import pytest

from simpar.errors import UserError
from simpar.frameworks.shell import Script
from simpar.frameworks.shell_output import hosts_in
from simpar.preflight.launcher import launch_of

OTHER = '#!/bin/bash\nrun $1 ${2:-x} "$GIVEN" $NOT\n'


def commands(text, source="the command"):
    """The commands of a script."""
    return Script(text, source).commands


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that a script is started in, with others in ``jobs``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    for name, text in {"other.sh": OTHER, "env.sh": "FROM=5\nexport Z=1\n", "wrap.sh": 'exec "$@"\n'}.items():
        (tmp_path / "jobs" / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('run $(basename a/b.sh .sh) "$(dirname a/b/c)" `echo x`', ["b", "a/b", "x"]),
        ('V=0,1,2; run $(echo $V | tr "," "\\n" | wc -l) $(echo "$V" | awk -F, \'{print NF}\')', ["3", "3"]),
        ("x=a/b.tar.gz; run ${x%.*} ${x%%.*} ${x#*/} ${x##*/} ${x^^}", ["a/b.tar", "a/b", "b.tar.gz", "b.tar.gz",
                                                                    "A/B.TAR.GZ"]),
        ("x=abcd; run ${x/b/z} ${x:1:2} ${#x}", ["azcd", "bc", "4"]),
        ("A=(1 2 3); run ${#A[@]} ${A[1]} ${A[-1]}", ["3", "2", "3"]),
        ('declare -A M=([7b]=32 [8b]="33"); M[x]=4; S=8b; run ${M[$S]} ${M[x]} ${#M[@]}', ["33", "4", "3"]),
        ("set -- a b; run $10 ${2} $@ \"$10\"", ["a0", "b", "a", "b", "a0"]),
        ("run $10", ["${1}0"]),
        ("N=2; run $((N * $(echo 4))) \"x$((N+1))\"", ["8", "x3"]),
        ("run $(nvidia-smi -L | wc -l)", ["$(nvidia-smi -L | wc -l)"]),
        ("run $(expr 2 + 3) $(seq -s x 3)$(seq -s, 0 2) $(printf '%s-%d' a 4)", ["5", "1x2x30,1,2", "a-4"]),
        ("X=A; A=7; run ${!X}", ["7"]),
    ],
)  # fmt: skip
def test_words_are_worked_out(text, words):
    """Paths, counts of lists, parts of words, elements; what programs print stays unknown."""
    assert commands(text) == [["run", *words]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bash jobs/other.sh 8", [["run", "8", "x", "${GIVEN}", "${NOT}"]]),
        ("NOT=1; export GIVEN=4; ./jobs/other.sh 8 9", [["run", "8", "9", "4", "${NOT}"]]),
        ("GIVEN=4 NOT=2 bash -x jobs/other.sh 8", [["run", "8", "x", "4", "2"]]),
        (". jobs/env.sh; run $FROM", [["run", "5"]]),
        ("set -a; source jobs/env.sh; set +a; bash -c 'run $FROM'", [["run", "5"]]),
        ("cd jobs; bash other.sh 1", [["run", "1", "x", "${GIVEN}", "${NOT}"]]),
        ('srun -N 4 bash -c "torchrun a.py --x 1"', [["srun", "-N", "4", "torchrun", "a.py", "--x", "1"]]),
        ('ray job submit --address a -- bash -c "cd /w && python t.py --x 1"', [["python", "t.py", "--x", "1"]]),
        ("kubectl exec -i pod -- sh jobs/other.sh 8", [["run", "8", "x", "${GIVEN}", "${NOT}"]]),
        ('J=$(cat <<EOF\npython t.py \\\n --x 1\nEOF\n)\necho "$J" | bash', [["python", "t.py", "--x", "1"]]),
        ("J='python t.py'; echo \"$J\" | tr -d '\\r' | kubectl exec -i pod -- /bin/bash", [["python", "t.py"]]),
        ('echo "python t.py" | ssh host bash -s', [["ssh", "host", "python", "t.py"]]),
        ("cat jobs/other.sh | GIVEN=2 bash -s -- 8 9", [["run", "8", "9", "2", "${NOT}"]]),
        ("echo 'run $A' | A=2 bash; run $A", [["run", "2"], ["run", "${A}"]]),
        ("echo y | bash jobs/other.sh 1", [["echo", "y"], ["run", "1", "x", "${GIVEN}", "${NOT}"]]),
        ("get x | bash", [["get", "x"], ["bash"]]),
        ("python t.py | tee log", [["python", "t.py"], ["tee", "log"]]),
        ("mpirun -np 8 jobs/wrap.sh python t.py", [["mpirun", "-np", "8", "python", "t.py"]]),
        ('sbatch -N 2 --wrap="run 1"', [["sbatch", "-N", "2", "run", "1"]]),
        ("bash <<EOF\nrun 3\nEOF\n", [["run", "3"]]),
        ("cat > jobs/made.sh <<EOF\nrun \\$1\nEOF\nsbatch jobs/made.sh 5", [["sbatch", "run", "5"]]),
        ("cat <<EOF > made.sh\nrun 2\nEOF\n", [["run", "2"]]),
        ("usage() { cat <<EOF\nuse: x [y]\nEOF\n}\nusage\nrun 1", [["run", "1"]]),
        ("CMD=\"run --a 'b c'\"; eval $CMD", [["run", "--a", "b c"]]),
        ("exec nohup run 1 &", [["run", "1"]]),
    ],
)
def test_scripts_that_a_script_starts_are_read(text, expected, folder):
    """With their arguments and exported variables, behind the launchers that start them."""
    assert commands(text) == expected


def test_files_are_found_beside_the_script(folder):
    """By the path of the script itself, from wherever it is started."""
    text = 'HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\n. "$HERE/env.sh"\nbash other.sh $FROM "${HERE##*/}"\n'
    (folder / "jobs" / "train.sh").write_text(text)
    assert commands(text, "jobs/train.sh") == [["run", "5", "jobs", "${GIVEN}", "${NOT}"]]
    assert commands("readlink x; A=$(realpath jobs/../jobs); run ${A##*/}")[1:] == [["run", "jobs"]]


def test_a_sourced_file_may_lie_in_a_folder_of_the_repository(folder, monkeypatch):
    """As it is named from the top, where scripts are meant to be started."""
    (folder / ".git").mkdir()
    (folder / "jobs" / "a.sh").write_text("source jobs/env.sh\nrun $FROM\n")
    (folder / "jobs" / "env.sh").write_text("FROM=5\n")
    script = (folder / "jobs" / "a.sh").read_text()
    monkeypatch.chdir(folder / "jobs")
    assert Script(script, "a.sh").commands[-1] == ["run", "5"]


def test_files_that_a_script_writes_are_known(folder):
    """Here-documents and printed words, with their values put in."""
    script = Script('S=3\ncat > ds.json <<EOF\n{"stage": $S}\nEOF\necho "a: $S" > a.yaml\necho "b: 1" >> a.yaml', "x")
    assert script.text_of_file("ds.json") == ("ds.json", '{"stage": 3}\n')
    assert script.written["a.yaml"] == "a: 3\nb: 1\n"


def test_what_is_not_there_is_noted(folder):
    """A script that is not found, and one that submits itself again."""
    script = Script("a=1\nsrun ./missing.sh x", "job.sh")
    assert script.commands == [["srun", "./missing.sh", "x"]]
    assert script.notes == ["job.sh:2: ./missing.sh: no such file here: what it does is not read."]
    (folder / "chain.sh").write_text('#!/bin/bash\n#SBATCH -N 3 --gpus-per-node=4\nsbatch "$0"\nrun $SLURM_NNODES\n')
    again = Script("sbatch chain.sh", "x")
    assert again.commands == [["sbatch", "run", "3"]]
    assert again.notes == ["chain.sh:3: chain.sh submits itself again; the first job is read."]


@pytest.mark.parametrize("line", ["bash loop.sh", "source loop.sh", ". ./loop.sh", 'exec "$0"'])
def test_scripts_that_lead_back_to_themselves_are_refused(line, folder):
    """By file and line."""
    (folder / "loop.sh").write_text(f"\n\n{line}\n")
    with pytest.raises(UserError, match=r"loop.sh:3: .*loop.sh leads back to itself"):
        Script("bash loop.sh", "x")


def test_scripts_inside_one_another_end(folder):
    """Eleven of them."""
    for number in range(12):
        (folder / f"s{number}.sh").write_text(f"bash s{number + 1}.sh\n")
    with pytest.raises(UserError, match=r"s9.sh:1: s10.sh: more than 10 scripts inside one another"):
        Script("bash s0.sh", "x")


def test_slurm_tells_its_variables():
    """Directives before the first command, the command line over them; nodes follow from tasks."""
    text = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=h100:8\n\nrun {}\n#SBATCH -N 9\n"
    names = ["SLURM_JOB_NUM_NODES", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE", "SLURM_NTASKS"]
    told = text.format(" ".join(f"${{{name}}}" for name in names))
    assert commands(told) == [["run", "4", "8", "8", "4"]]
    hosts = 'H=($(scontrol show hostnames "$SLURM_JOB_NODELIST")); run ${#H[@]} ${H[0]}'
    assert commands(f"#SBATCH -n 16 --ntasks-per-node=8\n{hosts}") == [["run", "2", "node1"]]
    assert commands(f"sbatch -N 3 <<'EOF'\n#!/bin/bash\n#SBATCH -N 2\n{hosts}\nEOF")[0][-2:] == ["3", "node1"]
    parts = "#SBATCH -N 2\n#SBATCH hetjob\n#SBATCH -N 6 --gpus=48\nrun $SLURM_NNODES ${SLURM_GPUS:-none}"
    assert commands(parts) == [["run", "2", "none"]]  # a step that names no part runs on the first
    assert list(hosts_in("a[08-10,12],b")) == ["a08", "a09", "a10", "a12", "b"]


def test_the_launcher_of_ngc():
    """It hands a text to a shell on its nodes; its own environment and folders are no words of the program."""
    text = "bcprun -p 8 --nnodes 4 --env 'A=1' -w /work -c 'python train.py \\\n  --b 2'"
    assert commands(text) == [["bcprun", "--nnodes", "4", "-p", "8", "python", "train.py", "--b", "2"]]
    launch = launch_of(text.replace("train.py", "pretrain_gpt.py"), "x.sh")
    assert (launch.nodes, launch.per_node, launch.target) == (4, 8, "megatron")
    assert commands("bcprun --help") == [["bcprun", "--help"]]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("${Z:-$((( X + 8 ) / 16 ))}", ["1"]),
        ("$(((X+8)/2))", ["8"]),
        ("${Q:-$(( (X+8) * (X+(1*2)) ))}", ["160"]),
        ('"${Z:-$((( X + 8 ) / 16 ))}"', ["1"]),
    ],
)
def test_arithmetic_that_begins_with_a_parenthesis(value, words):
    """Also as the value in place of one that is unset."""
    assert commands(f"X=8\nrun {value}\n") == [["run", *words]]


@pytest.mark.parametrize(
    "start",
    [
        "ssh -p 22 user@node1 '{}'", "pdsh -w node[1-2] '{}'", "clush -w a,b '{}'", "su - user -c '{}'",
        "script -q -c '{}' log.txt", "gcloud compute tpus tpu-vm ssh x --zone z --worker=all --command='{}'",
        "for i in 0 1; do ssh node$i \"{}\" & done; wait",
    ],
)  # fmt: skip
def test_texts_for_other_machines_and_users_are_read(start):
    """Each starts what it is told in a shell; nodes are those of the launcher in the text."""
    launch = launch_of(start.format("cd /x && torchrun --nnodes 2 --nproc_per_node 8 train.py --a 1"), "x.sh")
    assert (launch.nodes, launch.per_node, launch.words[-2:]) == (2, 8, ("--a", "1"))


def test_words_behind_a_host_are_no_text():
    """A host that only running tells, of several words (bigscience, jz/slurm/multi-node-launcher3.slurm)."""
    text = 'H="$(hostname -s) $(scontrol show x)"\nfor h in "$H"; do ssh -q $h python -m torch.distributed.launch '
    launch = launch_of(text + "--nnodes 2 --nproc_per_node 4 train.py --a 1; done", "x.sh")
    assert (launch.nodes, launch.per_node, launch.words[-2:]) == (2, 4, ("--a", "1"))
