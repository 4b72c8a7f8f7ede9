"""Settings: their dataclasses, the choices between them, and how words become a run."""
