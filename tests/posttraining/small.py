"""A small step of reinforcement learning as options of the command line."""


def as_options(*sets: str) -> list[str]:
    """Values by dotted keys as the command line takes them."""
    return [word for each in sets for word in ("--set", each)]


SMALL_STEP = as_options(
    "post_training.prompts=8", "post_training.samples=4", "post_training.steps=1",
    "post_training.lengths.prompt.fixed=128", "post_training.lengths.response.fixed=100",
)  # fmt: skip
