"""Settings: their dataclasses, the choices between them, and the parsing of a command line."""
