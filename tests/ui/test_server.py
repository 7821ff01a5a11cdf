"""The addresses of the page: what is answered, and what is refused."""

import socket

import pytest

from simpar.errors import UserError
from simpar.scenario import Scenario
from simpar.simulation import simulate
from simpar.ui.guard import refusal

EVIL = "<img src=x onerror=alert(1)>"


def test_a_state_is_answered_by_the_figures_of_simulate(ask, state):
    """The numbers are those of the library, to the last bit, with the interval and the probability of fitting."""
    found = ask()["numbers"]
    result = simulate(**Scenario.model_validate(state).inputs(), with_timeline=False)
    values = found["values"]
    assert values["step_time_s"] == result.step_time_s
    assert values["step_time_interval_s"] == list(result.certainty.step_time_interval_s)
    assert values["fit_probability"] == result.certainty.fit_probability
    assert found["plan"]["mesh"]["dp"] == 2
    assert "stage 1" in found["html"]["memory_table"]


def test_a_change_brings_the_new_state_with_it(ask, state):
    """A pipeline given up leaves neither schedule nor layers behind, and the other devices become replicas."""
    found = ask({**state, "plan": {"pp": 2, "schedule": "gpipe"}}, change={"pp": 1})["numbers"]
    assert found["state"].get("plan", {}) == {}
    assert found["plan"]["mesh"]["dp"] == 4


def test_a_job_changes_under_a_plan(ask, state):
    """What a plan pinned to the old job is left open."""
    found = ask({**state, "plan": {"pp": 2, "dp": 2}}, job={"training.global_batch": 16})["numbers"]
    assert found["state"]["training"]["global_batch"] == 16
    assert "dp" not in found["state"]["plan"]


def test_choices_come_with_the_numbers(ask):
    """Every choice has its value now among its legal values."""
    choices = {choice["name"]: choice for choice in ask(brief=False)["choices"]}
    assert choices["pp"]["now"] == 2
    assert [value["value"] for value in choices["pp"]["values"]] == [1, 2, 4]


def test_the_page_begins_with_the_named_scenario(client, state):
    """Its state, the names that menus offer, and the page's files are there, of this package alone."""
    from simpar.ui.server import FILES

    start = client.get("/api/start").json()
    assert start["state"]["model"] == state["model"]
    assert "dgx-h100" in start["names"]["hardware"]
    page = client.get("/").text
    for name in FILES:
        text = client.get(name).text
        assert text
        assert "http" not in text.replace("http://www.w3.org", "")
    assert "http" not in page


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"state": {"model": "gpt5", "cluster": {"hardware": "dgx-h100"}, "training": {}}}, "training.seq_len"),
        ({"state": []}, "state = list"),
        ({"state": {}, "change": {"tpp": 2}}, "missing"),
        ({"state": {"operation": {}}}, "unknown key operation"),
        ({"state": {"model": "x"}, "job": {"cluster.node": 2}}, "did you mean 'cluster.nodes'?"),
        ([], "a request is a JSON object"),
    ],
)
def test_a_state_that_is_none_is_one_line(client, body, words):
    """What is wrong is named, and nothing is simulated."""
    response = client.post("/api/answer", json=body)
    assert words in response.json()["error"]


@pytest.mark.parametrize(
    "more",
    [
        {"model": "os:getcwd"},
        {"model": "/etc/passwd.json"},
        {"model": EVIL},
        {"cluster": {"hardware": "../../secret.yaml"}},
        {"stack": "/etc/stack.yaml"},
        {"plan": {"stack": "mine.yaml"}},
    ],
)
def test_a_link_opens_no_file_and_runs_no_code(ask, state, more):
    """Only what is shipped, or was named on the command line, is loaded."""
    assert "is not shipped" in ask({**state, **more})["error"]


def test_names_are_escaped(ask, state):
    """A model that is written out may call itself anything: it is text wherever it is shown."""
    from simpar.architectures.catalogue import config_of

    found = ask({**state, "model": {**config_of("gpt2"), "name": EVIL}}, job={}, brief=False)["numbers"]
    assert found["title"].startswith(EVIL)
    assert not any("<img" in html for html in found["html"].values())


def test_an_illegal_plan_says_what_would_be_legal(ask, state):
    """The error is the library's line, and the choices are there to mend it."""
    found = ask({**state, "plan": {"tp": 3}}, brief=False)
    assert "does not divide" in found["error"]
    assert 4 in [value["value"] for choice in found["choices"] if choice["name"] == "tp" for value in choice["values"]]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"host": "evil.example:8877"}, 403),
        ({"host": ""}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:8877"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-length": "1073741824"}, 413),
        ({"content-length": "-1"}, 413),
        ({"host": "localhost:9000", "origin": "http://localhost:9000"}, 200),
    ],
)
def test_requests_of_others_are_refused(client, headers, status):
    """Only a page of this server on this machine is answered, under any port of a tunnel."""
    usual = {"content-type": "application/json"}
    response = client.post("/api/answer", content=b'{"state": 1}', headers={**usual, **headers})
    assert response.status_code == status
    assert "error" in response.json()  # answered are those that reach what is wrong with the question
    assert ("state = int" in response.text) == (status == 200)


def test_a_foreign_page_may_link_here_and_read_nothing(client):
    """Following a link opens the page; asking for an answer from elsewhere does not."""
    cross = {"sec-fetch-site": "cross-site"}
    assert client.get("/", headers={**cross, "sec-fetch-mode": "navigate"}).status_code == 200
    assert client.get("/api/start", headers={**cross, "sec-fetch-mode": "cors"}).status_code == 403


def test_a_body_without_a_length_is_cut_off(client):
    """What comes in pieces is refused as soon as they are too many."""
    pieces = (b" " * 2**20 for _ in range(10))
    response = client.post("/api/answer", content=pieces, headers={"content-type": "application/json"})
    assert response.status_code == 413


def test_nothing_is_loaded_from_outside(client):
    """The policy allows this server's own files and no others."""
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy


def test_a_port_in_use_is_one_line(client):
    """It names the port; without a port any free one is taken."""
    from simpar.ui.server import listen

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"--port {port}: is in use"):
            listen(port)
    with listen(None) as found:
        assert found.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "plan.example.org", "origin": "https://plan.example.org", "content-type": "application/json"}, 0),
        ({"host": "127.0.0.1:8877", "content-type": "application/json"}, 0),
        ({"host": "other.example.org", "content-type": "application/json"}, 403),
        ({"host": "plan.example.org", "origin": "https://other.example.org", "content-type": "application/json"}, 403),
        ({"host": "127.0.0.1:8877", "origin": "https://plan.example.org", "content-type": "application/json"}, 403),
    ],
)
def test_a_proxy_lets_its_own_pages_in(headers, status):
    """Its host and no other, and only requests of pages under that host."""
    assert refusal("POST", headers, "plan.example.org")[0] == status
    assert refusal("POST", headers)[0] == (0 if headers["host"].startswith("127.") and "origin" not in headers else 403)
