"""Where the tables of published measurements lie that constants are fitted to and predictions are checked against.

That is $SIMPAR_DATA, else ../shared/data beside the checkout.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("SIMPAR_DATA", ROOT.parent / "shared" / "data"))
