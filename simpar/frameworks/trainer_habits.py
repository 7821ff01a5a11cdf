"""What scripts of the Trainer, and of TRL, do where nothing is said: by their names, or by a switch of their own."""

from dataclasses import replace

from simpar.frameworks.trainer_read import Adapters, Habits
from simpar.plan.choices.tuning import Tuning

EVERY = Tuning().lora_targets
TRANSFORMERS = Habits("transformers")
SFT = Habits(
    "trl",
    told={"recompute": "SFTConfig checkpoints unless told not to; TRL before 0.20 did not"},
    precision="bf16",
    recompute=True,
    adapters=Adapters(16),
)
"""A script with TRL's SFTConfig: bf16 and checkpointing unless told otherwise (``trainer/base_config.py``)."""
OF_TRLS_OPTIONS = replace(SFT, adapters=Adapters(16, dropout=0.05))
"""One that reads them of a file, by TRL's parser with its ModelConfig."""
TRL = replace(
    SFT, length=1024, states="fp32", attention="sdpa", adapters=Adapters(16, frozen="fp32", dropout=0.05), told={}
)
"""``trl sft``: lengths of 1,024 (``sft_config.py``), weights in fp32 (``model_config.py``)."""
QLORA = Habits("transformers", recompute=True, length=1280, states="fp32", attention="sdpa",
               adapters=Adapters(64, EVERY, bits=4, frozen="fp32", dropout=0.0))  # fmt: skip
"""``qlora.py`` of artidoro/qlora: adapters of all projections beside 4 bits, 1,024 + 256 tokens."""
ALPACA_LORA = Habits("transformers", precision="fp16", recompute=True, length=256, states="fp32", micro_batch=4,
                     adapters=Adapters(bits=8, dropout=0.05))  # fmt: skip
"""``finetune.py`` of tloen/alpaca-lora: 8 bits, whose preparation by PEFT checkpoints."""
LLM_ADAPTERS = replace(ALPACA_LORA, recompute=False, adapters=replace(ALPACA_LORA.adapters, bits=None))
"""That of AGI-Edgerunners/LLM-Adapters, which loads 16 bits unless told otherwise."""
LLAVA = replace(TRANSFORMERS, states="low", adapters=Adapters(64, EVERY, dropout=0.05))
"""``train.py`` of haotian-liu/LLaVA and what is made of it: adapters of every Linear of the decoder, of rank 64."""
LONG_LORA = replace(TRANSFORMERS, adapters=Adapters(8, ("q_proj", "k_proj", "v_proj", "o_proj"), dropout=0.0))
"""``fine-tune.py`` of dvlab-research/LongLoRA and what is made of it."""
INTERN_VL = replace(LLAVA, adapters=Adapters(16, EVERY, dropout=0.05))
"""``internvl_chat_finetune.py`` of OpenGVLab/InternVL, whose rank is said."""
BY_SWITCH = {"lora_enable": LLAVA, "low_rank_training": LONG_LORA, "use_llm_lora": INTERN_VL}
"""What scripts with a switch of adapters of their own do."""
RUN_CLM = replace(TRANSFORMERS, length=1024)
"""transformers' example of causal language models: blocks of 1,024 tokens where nothing says how long they are."""
RUN_MLM = replace(TRANSFORMERS, length=512)
"""That of masked ones: blocks as long as the tokenizer allows, at most 1,024; encoders' allow 512."""
QWEN_VL = replace(TRANSFORMERS, states="low", attention="flash2",
                  adapters=Adapters(64, ("q_proj", "k_proj", "v_proj", "o_proj"), dropout=0.05))  # fmt: skip
"""``train_qwen.py`` of QwenLM's qwen-vl-finetune: weights in bf16, adapters of attention."""
SCRIPTS = {
    "qlora.py": QLORA, "train_qwen.py": QWEN_VL, "run_clm.py": RUN_CLM, "run_clm_no_trainer.py": RUN_CLM,
    "run_mlm.py": RUN_MLM, "run_mlm_no_trainer.py": RUN_MLM,
}  # fmt: skip
"""Scripts of the Trainer whose own defaults are known, by name."""
