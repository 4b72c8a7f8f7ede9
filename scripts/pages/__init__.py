"""The parts of the documentation's site that come from the code; ``mkdocs.yml`` names the hooks."""
