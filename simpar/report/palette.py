"""Colours with the same meaning in every picture and page (Paul Tol's "bright" scheme, and greys).

A test holds that people without one kind of cones tell those of one picture apart.
"""

from simpar.plan.choices.mesh import COMMUNICATION

FORWARD, BACKWARD, WEIGHT, AGAIN, COMM, UPDATE, BOTH, HOST = (
    "#4477AA",
    "#228833",
    "#CCBB44",
    "#66CCEE",
    "#EE6677",
    "#AA3377",
    "#222255",
    "#997700",
)
KIND_COLOUR = {
    "forward": FORWARD, "backward": BACKWARD, "input_gradient": BACKWARD, "weight_gradient": WEIGHT,
    "forward_backward": BOTH, "recompute": AGAIN,
    "optimizer": UPDATE, "host": HOST, "offload": COMM, **dict.fromkeys(COMMUNICATION, COMM),
}  # fmt: skip
KIND_TITLE = {
    FORWARD: "forward", BACKWARD: "backward", WEIGHT: "weight gradient", BOTH: "forward and backward",
    AGAIN: "recompute", COMM: "communication", UPDATE: "optimizer", HOST: "host",
}  # fmt: skip
MEMORY_COLOUR = {
    "parameters": FORWARD, "gradients": AGAIN, "optimizer_states": UPDATE, "overhead": "#BBBBBB",
    "activations": BACKWARD, "transient": WEIGHT,
}  # fmt: skip
KERNEL_COLOUR = {"products": FORWARD, "attention": COMM, "experts": WEIGHT}
BUBBLE, WAITING, JITTER = "#BBBBBB", "#555555", "#DDDDDD"
PART_COLOUR = {
    "compute": FORWARD, "bubble": BUBBLE, "waiting": WAITING, "optimizer": UPDATE, "host": HOST, "jitter": JITTER,
    **{f"exposed_{kind}": COMM for kind in COMMUNICATION}, "offload": COMM,
}  # fmt: skip
"""Parts of the step, in the colours that the timeline gives to the corresponding ops."""
IDLE_COLOUR = {"exposed": COMM, "bubble": BUBBLE, "waiting": WAITING, "host": HOST}
IDLE_TITLE = {
    "exposed": "exposed communication", "bubble": "bubble", "waiting": "waiting for other ranks",
    "host": "launches on the host",
}  # fmt: skip
SERIES = (FORWARD, COMM, BACKWARD, UPDATE, AGAIN, HOST)
"""Lines of a chart without colours of their own, which marks tell apart as well."""
INK, FAINT = "#333333", "#E4E4E4"
BAND_EDGE, BAND_HATCH = "#555555", "...."  # the 90 % interval of peaks


def lighter(colour: str, steps: int) -> tuple[float, float, float]:
    """Later chunks of a rank in lighter shades, never lighter than half way to white."""
    from matplotlib.colors import to_rgb

    weight = min(0.22 * steps, 0.55)
    red, green, blue = to_rgb(colour)
    return (red + (1 - red) * weight, green + (1 - green) * weight, blue + (1 - blue) * weight)


def tint(colour: str) -> str:
    """Half way to white, as pages draw idle time in the colour of its cause."""
    return "#" + "".join(f"{(int(colour[at : at + 2], 16) + 256) // 2:02X}" for at in (1, 3, 5))


def ink_on(colour: tuple[float, float, float]) -> str:
    """White or dark letters, whichever is more readable on a colour (luma of ITU-R BT.601)."""
    red, green, blue = colour
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else INK
