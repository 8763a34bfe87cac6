"""``python -m deepasm_torch``: see :mod:`deepasm_torch.cli`."""

import sys

from .cli import main

sys.exit(main())
