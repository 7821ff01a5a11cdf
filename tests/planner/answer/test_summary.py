"""Why this plan, on one page to hand on."""

import re

import simpar
from simpar import cli
from simpar.planner.answer.found import found_section
from simpar.planner.answer.summary import plan_words, save_summary, summary
from simpar.report.html import save_report


def test_why_this_plan_is_one_page(found, tmp_path, capsys):
    """Five questions, each answered; the same from a saved search; names are escaped."""
    found.save(tmp_path / "found.json")
    page = tmp_path / "why.html"
    assert cli.run(["report", str(tmp_path / "found.json"), "--summary", "-o", str(page)]) == 0
    text = page.read_text()
    titles = [section["title"] for section in summary(found)]
    assert titles == ["What was asked", "What was chosen", "By how much", "How sure", "What would change it"]
    assert all(section["lines"] for section in summary(found))
    assert all(f"<h2>{title}</h2>" in text for title in titles)
    named = found.with_details({"model": {"name": "<script>alert(1)</script>"}})
    save_summary(named, page)
    assert "<script>" not in page.read_text()


def test_the_page_of_a_run_says_days_and_dollars(found):
    """Where tokens were given, what the whole run of the chosen plan comes to is said, as the search prints it."""
    chosen = next(section["lines"] for section in summary(found) if section["title"] == "What was chosen")
    for name in ("days", "GPU-hours", "dollars", "MWh"):
        assert any(line.startswith(f"{name}: ") for line in chosen)
    assert chosen[0] == plan_words(found)
    of_step = next(line for line in chosen if " USD a step, at " in line)
    of_run = next(line for line in chosen if line.startswith("dollars: "))
    assert re.findall(r"at ([\d.]+) USD per GPU-hour", of_step) == re.findall(r"at ([\d.]+) USD per GPU-hour", of_run)


def test_readers_without_a_mouse_or_sight_find_everything(found, browser, faults_for_readers, tmp_path):
    """No rule of axe-core is broken: on the page that explains a search, and on its winner's with what was found."""
    why, winner = tmp_path / "why.html", tmp_path / "winner.html"
    save_summary(found, why)
    result = simpar.simulate("tiny-llama", "dgx-h100", found.best.plan, {"seq_len": 128, "global_batch": 8})
    save_report(result, winner, found_section(found))
    page = browser.new_page()
    for path in (why, winner):
        page.goto(path.as_uri())
        assert faults_for_readers(page) == {}
    page.close()
