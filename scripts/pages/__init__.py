"""Parts of the documentation's site generated from the code; ``mkdocs.yml`` lists the hooks."""
