"""The account of memory of a rank: named terms, for one plan or for arrays of plans by the same code."""
