"""Explains where a measured step went and what would change it: traces of real runs beside the prediction."""

from simpar.diagnosis.answer import Explanation, explain
from simpar.diagnosis.page import save_page

__all__ = ["Explanation", "explain", "save_page"]
