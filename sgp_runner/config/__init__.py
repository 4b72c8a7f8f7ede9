"""Settings: dataclasses, choices between classes, and the parsing of a command line."""
