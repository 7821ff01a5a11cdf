"""SageMaker's SDK (2.257.7) takes the estimator of job.py; script and config are those of a model."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from export_checks.hugging_face import check_model
from simpar.frameworks import Exported

REGION, CONTAINER = "us-west-2", "smdistributed-modelparallel"


def check(exported: Exported) -> None:
    """Make the estimator without credentials: the SDK validates its distribution and picks the library's container."""
    from sagemaker.pytorch import PyTorch

    session = mock.Mock(
        boto_region_name=REGION, local_mode=False, sagemaker_config={}, default_bucket_prefix=None, config=None
    )
    made = []

    class Estimator(PyTorch):
        def __init__(self, **given: object) -> None:
            super().__init__(**given, sagemaker_session=session)

        def fit(self) -> None:
            made.append(self)

    with tempfile.TemporaryDirectory() as folder:
        for name, text in exported.files.items():
            Path(folder, name).write_text(text)
        stand_in = {"sagemaker.pytorch": SimpleNamespace(PyTorch=Estimator)}
        with (
            mock.patch.dict(sys.modules, stand_in),
            mock.patch.object(sys, "argv", ["job.py", "arn:aws:iam::1:role/x"]),
        ):
            names = {"__name__": "__main__", "__file__": str(Path(folder, "job.py"))}
            exec(compile(exported.files["job.py"], "job.py", "exec"), names)
        (estimator,) = made
        given = json.loads(estimator.hyperparameters()["mp_parameters"])
        assert given == json.loads(exported.files["smp.json"])
        assert CONTAINER in estimator.training_image_uri()
    plan = json.loads(exported.files["plan.json"])
    assert given["tensor_parallel_degree"] == plan["mesh"]["tp"]
    check_model(exported)
