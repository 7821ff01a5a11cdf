"""The data flow of a simulation, from a model, a cluster and a plan to a Result."""

from __future__ import annotations

from simpar.cost.kernels import KernelModel
from simpar.cost.stack import Stack, load_stack
from simpar.hardware.cluster import Cluster, load_cluster
from simpar.models.catalogue import load_model
from simpar.models.graph import ModelGraph
from simpar.models.training import Training
from simpar.plan.plan import Plan
