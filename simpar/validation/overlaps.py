"""What a table's words say of experts' exchange: whether compute runs beside it, and by which dispatcher it goes."""

import re

_CLAUSES = re.compile(r"[;,|&\n]|\. |\b(?:and|but)\b")
_EXPERTS = r"(?<!shared )\b(?:ep|moe|experts?|all ?to ?all|a2a)\b"
_EXCHANGE = r"(?: (?:comm\w*|parallel\w*|experts?|exchanges?|all ?to ?all|a2a|dispatch\w*|is|are|not|fully|1f1b))*"
_OVERLAP = re.compile(
    rf"{_EXPERTS}{_EXCHANGE} (?P<state>overlap\w*|hidden|exposed)\b|"
    rf"\boverlap\w* (?:of|for) (?:the )?{_EXPERTS}|^(?:no |without )?overlap (?:ep|moe|experts?)\b(?! shared)"
)
_PLAIN = re.compile(r"(?:nccl )?(?:all-?to-?all|a2a)(?: dispatch(?:er)?)?")
_OFF = re.compile(r"\b(?:off|no|not|non|none|without|w/o|disabled|false|0$)\b")
_UNTOLD = re.compile(r"n/a|\bna\b|\bunknown\b|\?|\bnot (?:stated|said|given|known|published|specified)\b")


def expert_overlap(words: str) -> bool | None:
    """Whether experts' exchanges of tokens run beside compute; None where no clause says it.

    >>> [expert_overlap(each) for each in ("EP overlap off", "1F1B all-to-all overlap on", "tp overlap")]
    [False, True, None]
    >>> [expert_overlap(each) for each in ("overlap_moe_expert_parallel_comm=true", "EP overlap N/A")]
    [True, None]
    """
    for clause in _CLAUSES.split(words.lower()):
        plain = re.sub(r"[-_=:()\s]+", " ", clause).strip()
        if (match := _OVERLAP.search(plain)) is not None:
            if _UNTOLD.search(plain):
                return None
            return (_OFF.search(plain) is None) is (match["state"] != "exposed")
    return None


def names_plain_exchange(words: str) -> bool:
    """Whether a clause names an all-to-all as the dispatcher, and no library's.

    >>> [names_plain_exchange(each) for each in ("no overlap; all-to-all", "NCCL all-to-all dispatch", "a2a overlap")]
    [True, True, False]
    """
    return any(_PLAIN.fullmatch(clause.strip()) for clause in _CLAUSES.split(words.lower()))
