"""How is it split? Mesh, sharding, schedules and the Plan."""

OPEN = (
    "choices", "choices.choice", "choices.context_parallel", "choices.data_parallel", "choices.execution",
    "choices.experts", "choices.memory", "choices.mesh", "choices.numerics", "choices.offload", "choices.pipeline",
    "choices.target", "choices.tensor_parallel", "choices.tuning", "encoder_in_bubbles", "flat", "megatron_roles",
    "mesh", "offload", "optimizers", "optimizers.optimizer", "placement", "plan", "post_training", "routing",
    "schedules", "schedules.actions", "schedules.producer", "schedules.terapipe", "slices", "stage_layers", "stages",
    "sync", "torch_roles", "uniform_stages",
)  # fmt: skip
"""The modules that other rooms may import; all others are inner."""
