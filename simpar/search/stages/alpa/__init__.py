"""The Alpa space: a role for every operator within a stage, stages of any length on submeshes of any shape.

Two passes [Zheng et al. 2022, arXiv 2201.12023]: ``intra_op`` shards the operators of a stage on a logical mesh (an
integer program), ``inter_op`` cuts the model into stages and gives each a submesh (dynamic programming).
``optimize`` runs both and ranks what they find by simulated steps.
"""
