"""Errors that users can mend: one clear line each."""


class UserError(Exception):
    """Bad input (exit code 2): names the culprit, its value, the rule and the remedy.

    >>> import simpar
    >>> simpar.load_device("h100")
    Traceback (most recent call last):
    simpar.errors.UserError: ...
    """


class BadCall(UserError, TypeError, ValueError):
    """A call in Python with an unknown keyword or a value that is not allowed; also what Python itself raises there."""


class Infeasible(UserError):
    """Good input with no feasible answer (exit code 3).

    >>> issubclass(Infeasible, UserError)  # one ``except`` takes both
    True
    """


class Undecided(Infeasible):
    """No feasible answer so far, and no proof that there is none (exit code 3): stopped, or too large to simulate."""


class TooManyOps(UserError):
    """A step of more ops than are built (exit code 2)."""


class TooContendedError(Exception):
    """Sharing links took more work than an engine was allowed; for callers that have another way."""


class BeyondIntegers(UserError, ValueError):
    """A time, a size or a rate that does not fit in 64 bits (exit code 2): larger than any possible run."""
