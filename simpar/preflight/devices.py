"""The devices that a launch starts: whole nodes of the hardware, or a part of each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from simpar.errors import UserError
from simpar.frameworks.target import LAUNCHER
from simpar.hardware.catalogue import fabric_words, load_cluster
from simpar.hardware.instances import instance_named
from simpar.preflight.environment import hardware_as_told
from simpar.preflight.launcher import untold_size
from simpar.preflight.launchers import OF_MACHINE
from simpar.preflight.visible import last_visible, left_out, visible_devices

if TYPE_CHECKING:
    from simpar.hardware.cluster import Cluster
    from simpar.hardware.device import Device
    from simpar.plan.plan import Plan
    from simpar.preflight.check import CheckFlags
    from simpar.preflight.given import ParsedLaunch

NEURON = "trainium"
"""The beginning of the names of devices whose cores have a rank each (Neuron's torchrun)."""


def contradicted(given: ParsedLaunch, flag: str, means: str, said: str) -> UserError:
    """The error for a flag that contradicts the text, which is what runs."""
    means = f" {means};" if means else ""
    over = _over_nodes(given) if flag.startswith(("--nodes", "--gpus")) else ""
    return UserError(f"{flag}:{means} {given.where} says {said}; allowed: what the text says, or no such flag{over}")


def _over_nodes(given: ParsedLaunch) -> str:
    """How a file gets another number of nodes than it says, where its framework's commands can lay one over it."""
    path = Path(given.where)
    if given.text.target != "nemo-1" or given.text.syntax != "yaml":
        return ""
    command = f"python megatron_gpt_pretraining.py --config-path={path.absolute().parent} --config-name={path.stem}"
    return f", or another number over the file: simpar check -- {command} trainer.num_nodes=N"


def _in_cores(given: ParsedLaunch, device: Device, whole: int, notes: list[str]) -> None:
    """What a rank is on a device of several cores, of which Neuron starts one rank each: here it is a whole device.

    Raises UserError where a node would have more ranks than devices.
    """
    cores, ranks = device.num_sms, given.launch.per_node
    if not device.name.startswith(NEURON) or ranks is None:
        return
    if ranks > whole:
        raise UserError(
            f"{given.where}: {ranks} ranks of a node are cores of {device.name}: a node has {whole} devices of {cores} "
            f"cores, and ranks here are whole devices; allowed: at most {whole} ranks of a node"
        )
    notes.append(f"Ranks are taken for whole devices; Neuron may start one on each of the {cores} cores of a device.")


def _after_exclusions(given: ParsedLaunch, whole: int, nodes: int | None) -> int | None:
    """The devices of a node without those that the launcher leaves out; None if it leaves out none.

    Raises UserError where it leaves out some of one of several nodes, or all.
    """
    excluded = left_out(given.launch.words)
    if not excluded:
        return None
    least, most = min(excluded.values()), max(excluded.values())
    if least != most or (nodes or len(excluded)) != len(excluded):
        raise UserError(f"{given.where}: --exclude leaves nodes with unlike numbers of devices; allowed: equal nodes")
    if most >= whole:
        raise UserError(f"{given.where}: --exclude leaves out {most} of the {whole} devices of a node; allowed: fewer")
    return whole - most


def _check_numbers(given: ParsedLaunch, whole: int, hardware: str) -> None:
    """Refuse a variable that lists a device that a node has not. Raises UserError."""
    name, last = last_visible(given.launch.environment)
    if last >= whole:
        raise UserError(
            f"{given.where}: {name} lists device {last}: a node of {hardware} has {whole}; allowed: 0 to {whole - 1}"
        )


def _check_part(given: ParsedLaunch, facts: CheckFlags, cluster: Cluster) -> None:
    """Refuse to spread a flag's devices over nodes that show some of theirs, where nothing says that there are several.

    Raises UserError.
    """
    seen = visible_devices(given.launch.environment, given.launch.words)
    if seen is None or facts.devices is None or facts.nodes or given.launch.nodes or cluster.nodes == 1:
        return
    raise UserError(
        f"--gpus {facts.devices}: {given.where} shows its ranks {seen} devices of a node, so that these are "
        f"{cluster.nodes} nodes; allowed: --gpus {seen}, or --nodes {cluster.nodes} if it starts on so many"
    )


def _of_nodes(nodes: int, each: int, ranks: int | None) -> int:
    """The devices that a flag's number of nodes means: all of each, or those of one node that ranks are started on."""
    return ranks if nodes == 1 and ranks is not None and ranks < each else nodes * each


def cluster_of(given: ParsedLaunch, plan: Plan, facts: CheckFlags, notes: list[str]) -> Cluster:
    """The devices that are started, with the hardware that a flag names: whole nodes, or a part of each."""
    if facts.hardware is None:
        raise UserError("--hardware is missing: no launch command says what it runs on (simpar list hardware)")
    launch, hardware = given.launch, hardware_as_told(facts.hardware, given.launch.environment, notes)
    one, instance = load_cluster(hardware), instance_named(hardware)
    whole = one.world_size // one.nodes
    if instance is None:  # a number of devices (4xA100) may be any of a node
        _check_numbers(given, whole, hardware)
    _in_cores(given, one.device, whole, notes)
    if one.profile.name != hardware and not Path(hardware).suffix:
        notes.append(f"{hardware} is taken for {one.profile.name}: {fabric_words(one.profile)}.")
    if instance is not None and launch.per_node and launch.per_node > whole:
        ranks_told = f"{launch.per_node} ranks of a node"
        raise contradicted(given, f"--hardware {hardware}", f"has {whole} devices in a node", ranks_told)
    ranks = 1 if given.found.sized.alone == LAUNCHER else launch.world_size or plan.world_size
    nodes = facts.nodes or launch.nodes
    if OF_MACHINE in launch.notes and not (facts.nodes or facts.devices):  # unless a replica needs more than a node
        replica = plan.mesh.model_copy(update={"dp": 1}).world_size or 1
        nodes = nodes if replica <= whole else None
    each = launch.per_node if nodes in (None, launch.nodes) or launch.nodes is None else None
    each = None if each is not None and each > whole else each  # nodes of another size: as many devices
    each = each or _after_exclusions(given, whole, nodes)
    asked = facts.devices or (_of_nodes(facts.nodes, each or whole, ranks) if facts.nodes else None)
    if instance is not None and (asked, ranks, nodes) == (None, None, None):
        asked = one.world_size
    fits_one = plan.mesh.model_copy(update={"dp": 1}).world_size == 1
    is_single = launch.is_single and not given.found.sized.several
    if is_single and fits_one and (asked, ranks, nodes) == (None, None, None):
        asked = nodes = 1
        notes.append("python starts one process, on one device; if something else starts more, give --nodes or --gpus.")
    if asked is not None and ranks not in (None, asked):
        flag = f"--gpus {facts.devices}" if facts.devices else f"--nodes {facts.nodes}"
        raise contradicted(given, flag, f"means {asked} ranks on {hardware}", f"{ranks} ranks")
    devices = asked or ranks or (nodes * (each or whole) if nodes else None)
    if devices is None:
        how = f"give --nodes N, or --gpus N{untold_size(launch, given.where)}"
        raise UserError(f"{given.where}: does not say how many nodes it starts: {how}")
    if nodes is None or devices > nodes * whole:
        nodes = devices // each if each and devices % each == 0 else None
    if one.is_mixed:
        if devices % one.world_size:
            raise UserError(f"{given.where}: starts {devices} ranks; allowed: multiples of {one.world_size}")
        return load_cluster(hardware, devices // whole)
    cluster = load_cluster(hardware, nodes, devices)
    per_node = cluster.profile.devices_per_node
    if per_node < whole:
        _check_part(given, facts, cluster)
        of_nodes = "a node" if cluster.nodes == 1 else f"each of {cluster.nodes} nodes"
        notes.append(f"{per_node} of the {whole} devices of {of_nodes} of {hardware} are used.")
    elif launch.per_node not in (None, per_node):
        notes.append(f"{devices} ranks are {cluster.nodes} of {hardware}'s nodes of {per_node}.")
    return cluster
