"""The page of what is read."""

from benchmarks.readers import PAGE, page, versions
from simpar.frameworks import READERS


def test_the_page_of_what_is_read_is_current():
    """It is what readers declare and the corpus holds; ``python benchmarks/readers.py`` writes it."""
    assert PAGE.read_text() == page(), "run python benchmarks/readers.py"


def test_files_of_the_corpus_belong_to_readers():
    """Every one says of which version it is."""
    told = versions()
    assert set(told) <= set(READERS)
    assert all(listed for _, listed in told.values())
