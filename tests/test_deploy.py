"""What deploys the page: no root, no open port but the proxy's, the project's own dependencies and version."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import simpar
from simpar.cli.ui import UI_FLAGS, _host_of
from simpar.errors import UserError

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
PORT = "8877"


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    """The metadata of the distribution."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def documents(name: str) -> list[Any]:
    """The documents of a YAML file."""
    return list(YAML(typ="safe").load_all((DEPLOY / name).read_text()))


def test_the_image_runs_without_root_and_says_whether_it_is_well():
    """As a number, so that Kubernetes can check it; the health check asks the page itself."""
    text = (DEPLOY / "Dockerfile").read_text()
    last = text.rpartition("FROM ")[2]
    assert re.search(r"^USER \d+$", last, re.MULTILINE)
    assert f"http://127.0.0.1:{PORT}/api/start" in last.split("HEALTHCHECK")[1]
    assert f'CMD ["ui", "--no-open", "--port", "{PORT}"]' in last
    assert "EXPOSE" not in text


def test_only_the_proxy_is_reached():
    """The page has no port of its own; the proxy shares its network and asks who comes."""
    [compose] = documents("compose.yaml")
    page, proxy = compose["services"]["page"], compose["services"]["proxy"]
    assert proxy["network_mode"] == "service:page"
    assert page["ports"] == ["4180:4180"]
    assert "--http-address=0.0.0.0:4180" in proxy["command"]
    deployment, service = documents("kubernetes.yaml")
    pod = deployment["spec"]["template"]["spec"]
    inside, door = pod["containers"]
    assert "ports" not in inside
    assert [port["containerPort"] for port in door["ports"]] == [4180]
    assert service["spec"]["ports"][0]["targetPort"] == "http"
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in pod["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert {"requests", "limits"} <= container["resources"].keys()
    for words in (page["command"], inside["args"]):
        assert words[: words.index("--public")] == ["ui", "--no-open", "--port", PORT]
        assert {word for word in words if word.startswith("--")} <= {flag.spelling for flag in UI_FLAGS}
    assert inside["args"][-1] + "/oauth2/callback" in str(door["args"])


def test_both_files_lock_both_containers_alike():
    """Nothing to write to but /tmp, no capabilities, no new privileges, and the same limits of memory and cores."""
    [compose] = documents("compose.yaml")
    pod = documents("kubernetes.yaml")[0]["spec"]["template"]["spec"]
    for name, container in zip(("page", "proxy"), pod["containers"], strict=True):
        service, locked, limits = (
            compose["services"][name],
            container["securityContext"],
            container["resources"]["limits"],
        )
        assert service["read_only"] is locked["readOnlyRootFilesystem"] is True
        assert service["cap_drop"] == locked["capabilities"]["drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        cores = float(limits["cpu"].removesuffix("m")) / (1000 if limits["cpu"].endswith("m") else 1)
        assert service["cpus"] == cores
        assert f"{service['mem_limit'].upper()}i" == limits["memory"]


def test_the_recipe_has_the_projects_dependencies(project):
    """The same bounds; matplotlib without its windows is matplotlib-base there."""
    [recipe] = documents("conda/recipe.yaml")
    named = [each.replace("matplotlib-base", "matplotlib").replace(" ", "") for each in recipe["requirements"]["run"]]
    assert named == [f"python{project['requires-python']}", *project["dependencies"]]
    assert recipe["package"]["name"] == project["name"]


def test_versions_are_those_of_the_project():
    """In the recipe and in the image's tag."""
    assert documents("conda/recipe.yaml")[0]["context"]["version"] == simpar.__version__
    assert f"simpar:{simpar.__version__}" in (DEPLOY / "kubernetes.yaml").read_text()


def test_a_public_address_is_an_address():
    """Its host, as browsers send it; no path, no password."""
    assert _host_of("https://Plan.example.org/") == "plan.example.org"
    assert _host_of("http://a:8080") == "a:8080"
    assert _host_of(None) == ""
    for wrong in ("plan.example.org", "https://a/b", "ftp://a", "https://me:secret@a"):
        with pytest.raises(UserError, match="allowed: an address without a path"):
            _host_of(wrong)
