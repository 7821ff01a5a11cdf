"""What a table's words say of experts' exchange: whether compute runs beside it, and by which dispatcher it goes."""

import re

_CLAUSES = re.compile(r"[;,|]|\. ")
_EXPERTS = re.compile(
    r"overlap of (?:experts?|moe)\b|"
    r"(?:\bep|\bmoe|(?<!shared )\bexperts?|all-?to-?all|\ba2a|expert[ -]parallel)(?:[ _-]comm\w*)?[ _-]overlap"
)
_PLAIN = re.compile(r"(?:nccl )?(?:all-?to-?all|a2a)(?: dispatch(?:er)?)?")
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


def names_plain_exchange(words: str) -> bool:
    """Whether a clause names an all-to-all as the dispatcher, and no library's.

    >>> [names_plain_exchange(each) for each in ("no overlap; all-to-all", "NCCL all-to-all dispatch", "a2a overlap")]
    [True, True, False]
    """
    return any(_PLAIN.fullmatch(clause.strip()) for clause in _CLAUSES.split(words.lower()))
