"""Execution traces by their files' names, replayed as traced or on a cluster."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from simpar.chakra.host_trace import read_host_traces
from simpar.chakra.read import by_rank, read_chakra
from simpar.chakra.recording import Recording
from simpar.chakra.replay import Replay, on_profile, replay
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import Cluster

CHAKRA, TORCH = ".et", ".json"


def replay_files(
    names: Sequence[str], hardware: str | None = None, nodes: int | None = None
) -> tuple[Replay, Recording]:
    """Replay traces of all ranks, or of a folder. Raises UserError.

    With ``hardware``, communication is priced on ``nodes`` nodes of it (by default as many as the ranks fill), and so
    are the operators in torch's traces, which have no times.
    """
    paths, kind = _paths(names)
    if kind == TORCH and hardware is None:
        raise UserError("--hardware is missing: traces of torch have no times; give a cluster on which they are priced")
    cluster = None if hardware is None else _cluster(hardware, nodes, len(paths))
    if kind == CHAKRA:
        recording = read_chakra(paths)
    else:
        assert cluster is not None, "refused above"
        recording = read_host_traces(paths, cluster.device)
    result = replay(recording, None if cluster is None else on_profile(cluster))
    alone = () if cluster is None else ("communication is priced with its links to itself",)
    return result, replace(recording, notes=(*recording.notes, *alone))


def _paths(names: Sequence[str]) -> tuple[list[Path], str]:
    """(Files in the order of their ranks, their kind)."""
    folder = Path(names[0])
    given = [Path(name) for name in names]
    if len(names) == 1 and folder.is_dir():
        given = sorted(folder.glob("*.et")) or sorted(folder.glob("*.et.gz"))
        if not given:
            raise UserError(f"{folder}: has no *.et; of torch's traces give the files")
    kinds = {Path(path.name.removesuffix(".gz")).suffix for path in given}
    if len(kinds) > 1 or not kinds <= {CHAKRA, TORCH}:
        wrong = next(path for path in given if Path(path.name.removesuffix(".gz")).suffix != CHAKRA)
        raise UserError(f"{wrong}: allowed: *.et of Chakra, or *.json of torch's ExecutionTraceObserver, of one kind")
    for path in given:
        if not path.is_file():
            raise UserError(f"{path}: there is no such file")
    return by_rank(given), kinds.pop()


def _cluster(hardware: str, nodes: int | None, world: int) -> Cluster:
    """The cluster for ``world`` ranks; by default as many nodes as they fill."""
    one = load_cluster(hardware, 1)
    if one.is_mixed:
        raise UserError(f"--hardware {hardware}: has nodes of several kinds; allowed: one kind")
    many = nodes or -(-world // one.world_size)
    cluster = load_cluster(hardware, many)
    if cluster.world_size < world:
        raise UserError(f"--nodes {many}: {cluster.world_size} devices for {world} ranks")
    return cluster
