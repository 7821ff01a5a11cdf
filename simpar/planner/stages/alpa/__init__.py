"""The Alpa space: a role for every operator within a stage, and stages of any length on submeshes of any shape.

It takes two passes [Zheng et al. 2022, arXiv 2201.12023]: ``intra_op`` shards the operators of a stage on a logical
mesh (an integer program); ``inter_op`` cuts the model into stages and assigns submeshes (dynamic programming).
``optimize`` runs both and ranks the resulting plans by simulated steps.
"""
