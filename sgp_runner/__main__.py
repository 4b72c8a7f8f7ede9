"""``python -m sgp_runner`` is ``sgp-run``, also for launchers such as torchrun."""

from sgp_runner.cli.commands import sgp_run

if __name__ == "__main__":
    sgp_run()
