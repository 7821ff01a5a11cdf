"""Choices about what of the model is trained."""

from typing import Annotated, Any, Literal

from pydantic import Field

from simpar.dataclass import dataclass
from simpar.plan.choices.choice import Choice, Flag, in_section
from simpar.plan.choices.section import Section
from simpar.stacks.stack import Stack
from simpar.units import Count

Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Tuning(Section):
    """What of the model is trained.

    Either low-rank adapters of ``lora_rank`` beside ``lora_targets``, or all but the embedding and the first
    ``frozen_layers``, and but the layers of a tower of images or sound (``frozen_tower``) and what joins it to the
    others (``frozen_connector``); ``frozen_dtype`` nf4 stores frozen matrices of layers in 4 bits, int8 in 8 bits that
    are widened, fp8 in the 8 bits that products of that precision read, fp32 in 32 bits that are narrowed before every
    product; bf16 is that of the products.
    ``lora_dropout`` is the probability with which an adapter drops an element of its input; None: as the stack's do.
    """

    lora_rank: Count | None = None
    lora_targets: tuple[Projection, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    lora_dropout: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] | None = None
    frozen_layers: int = Field(default=0, ge=0, strict=True)
    frozen_tower: bool = False
    frozen_connector: bool = False
    frozen_dtype: Literal["bf16", "fp32", "fp8", "int8", "nf4"] = "bf16"

    @property
    def is_used(self) -> bool:
        """Whether anything is frozen."""
        return self.lora_rank is not None or self.frozen_layers > 0 or self.frozen_tower or self.frozen_connector

    @property
    def of_model(self) -> dict[str, Any]:
        """The choices as arguments of :func:`simpar.architectures.tuning.add_adapters`."""
        names = {"rank": "lora_rank", "targets": "lora_targets"}
        names |= {name: name for name in ("frozen_layers", "frozen_tower", "frozen_connector", "frozen_dtype")}
        return {argument: getattr(self, name) for argument, name in names.items()}


@dataclass(frozen=True, kw_only=True)
class DecidedTuning:
    """What of the model is trained."""

    lora_rank: int | None = None
    lora_targets: tuple[Projection, ...] = Tuning().lora_targets
    lora_dropout: float | None = None
    frozen_layers: int = 0
    frozen_tower: bool = False
    frozen_connector: bool = False
    frozen_dtype: Literal["bf16", "fp32", "fp8", "int8", "nf4"] = "bf16"


def _with_adapter_dropout(stack: Stack, rate: float) -> Stack:
    fusion = stack.fusion.model_copy(update={"adapter_dropout": rate > 0})
    return stack.model_copy(update={"fusion": fusion})


CHOICES = in_section(
    "tuning",
    Choice(
        "lora_rank",
        synonyms=("lora_r", "lora_dim"),
        flag=Flag(int, "Rank of low-rank adapters (LoRA), which alone are trained", given=True),
    ),
    Choice("lora_targets"),
    Choice("lora_dropout", in_stack=_with_adapter_dropout),
    Choice("frozen_layers"),
    Choice("frozen_tower"),
    Choice("frozen_connector"),
    Choice("frozen_dtype", flag=Flag(str, "Dtype of frozen weights: bf16, fp32, fp8, int8 or nf4")),
)
