"""The tables of a result as data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simpar.files import choose

if TYPE_CHECKING:
    import pandas as pd

    from simpar.report.result import Result

TABLES = ("stages", "time", "communication", "figures", "trials")
"""Memory by pipeline stage; parts of the step; communication by kind; the headline figures; simulated neighbours."""


def frame_of(result: Result, table: str) -> pd.DataFrame:
    """One table of a result, in SI units. Raises UserError for an unknown table."""
    import pandas as pd

    choose(table, TABLES, "table")
    if table == "stages":
        return pd.DataFrame([stage.model_dump(by_alias=True) for stage in result.memory.stages]).set_index("stage")
    if table == "time":
        parts = result.time_breakdown_s.model_dump()
        shares = [seconds / result.step_time_s for seconds in parts.values()]
        return pd.DataFrame({"time_s": list(parts.values()), "share": shares}, index=pd.Index(parts, name="part"))
    if table == "communication":
        rows = {kind: sent.model_dump() for kind, sent in result.communication.items()}
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("kind")
    if table == "trials":
        return pd.DataFrame([trial.model_dump() for trial in result.why.trials])
    figures = {key: value for key, value in result.to_dict().items() if isinstance(value, int | float)}
    return pd.DataFrame({"value": list(figures.values())}, index=pd.Index(figures, name="figure"))
