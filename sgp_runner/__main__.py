"""``python -m sgp_runner`` is ``sgp-run``, also for launchers such as torchrun."""

import sys

from sgp_runner.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
