"""A search in one line, as a frame and as text."""


def test_a_search_is_short_in_a_shell_and_a_table_in_a_notebook(found):
    """Its repr is a line, not every candidate's plan; the frame has a row a candidate in SI."""
    assert len(repr(found)) < 250
    assert repr(found).startswith(f"<SearchResult: {len(found.candidates)} candidates, certified")
    frame = found.to_frame()
    assert list(frame.index) == [one.rank for one in found.candidates]
    assert frame.step_time_s.iloc[0] == found.best.step_time_s
    assert frame.tp.iloc[0] == found.best.plan.mesh.tp
    assert found._repr_html_().count("<tr>") == 1 + len(found.candidates)
