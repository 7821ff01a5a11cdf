"""Why this plan, on one page to hand on."""

from simpar import cli
from simpar.planner.answer.summary import plan_words, save_summary, summary


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
