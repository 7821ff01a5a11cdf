"""Explains where a measured step went and what would change it: traces of real runs beside the prediction."""

from simpar.diagnosis.answer import Explanation, explain
from simpar.diagnosis.page import save_page

OPEN = ("answer", "page", "terminal")
"""The modules that other rooms may import; all others are inner."""

__all__ = ["Explanation", "explain", "save_page"]
