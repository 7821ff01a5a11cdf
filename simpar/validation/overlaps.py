"""What a table's words say of overlap between experts' exchange and compute: on, off, or nothing."""

import re

_CLAUSES = re.compile(r"[;,|]|\. ")
_EXPERTS = re.compile(
    r"overlap of (?:experts?|moe)\b|"
    r"(?:\bep|\bmoe|(?<!shared )\bexperts?|all-?to-?all|\ba2a|expert[ -]parallel)(?:[ _-]comm\w*)?[ _-]overlap"
)
_OFF = re.compile(r"\b(?:off|no|not|without|disabled|false)\b")


def expert_overlap(words: str) -> bool | None:
    """Whether experts' exchanges of tokens run beside compute; None where no clause is about it.

    >>> [expert_overlap(each) for each in ("EP overlap off", "1F1B all-to-all overlap on", "tp overlap")]
    [False, True, None]
    """
    for clause in _CLAUSES.split(words.lower()):
        if _EXPERTS.search(clause):
            return _OFF.search(clause) is None
    return None
