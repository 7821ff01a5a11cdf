"""torchtitan's main branch: the module of 0.3, with batches in tokens and data by grain."""

from collections.abc import Mapping
from dataclasses import replace

from simpar.frameworks import placeholder_data, torchtitan
from simpar.frameworks.subject import Subject
from simpar.frameworks.target import Options
from simpar.frameworks.torchtitan import TORCHTITAN, Release

IN_SEQUENCES = (
    "training.local_batch_size",
    "training.global_batch_size",
    "training.seq_len",
    "parallelism.pipeline_parallel_microbatch_size",
)
"""Options of 0.3 that main has in tokens, or as a number of microbatches."""
MAIN = Release(
    data="""from torchtitan.components.data import (
    ConcatThenSplitPackingConfig,
    GrainDataLoader,
    HuggingFaceRandomAccessSource,
    SingleDatasetConfig,
)
from torchtitan.hf_datasets.text_datasets import TextProcessor
""",
    loader=f"""GrainDataLoader.Config(
            dataset=ConcatThenSplitPackingConfig(
                dataset=SingleDatasetConfig(
                    source=HuggingFaceRandomAccessSource.Config(
                        path="json",
                        split="train",
                        load_dataset_kwargs={{"data_files": "./{placeholder_data.TEXT}/text.jsonl"}},
                    ),
                    processor=TextProcessor.Config(),
                    post_filters=(lambda sample: sample is not None,),
                )
            ),
            shuffle=False,
        )""",
    longest="max_context_length",
)


def options(s: Subject) -> Options:
    """Options by their dotted names."""
    seq_len, micro = s.training.seq_len, s.plan.micro_batch
    result = {name: value for name, value in torchtitan.options(s).items() if name not in IN_SEQUENCES}
    result["training.num_tokens_per_microbatch_per_dp_rank"] = micro * seq_len
    result["training.num_tokens_per_train_step"] = s.training.global_batch * seq_len
    result["training.max_context_length"] = seq_len
    if s.plan.mesh.sizes.is_pipelined:
        result["parallelism.num_pp_microbatches"] = s.microbatches
    return result


def files(s: Subject, given: Options) -> Mapping[str, str]:
    """The module, the schedule's action table if needed, and the launchers."""
    return torchtitan.written(s, given, MAIN)


TORCHTITAN_MAIN = replace(
    TORCHTITAN,
    name="torchtitan-main",
    description="torchtitan's main branch: a Python module with batches in tokens",
    version="torchtitan main of 21 August 2026 (b5bcd76c), its sources: no release has it",
    options=options,
    files=files,
)
