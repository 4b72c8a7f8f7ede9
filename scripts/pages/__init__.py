"""Parts of the documentation site generated from code; ``mkdocs.yml`` lists the hooks."""
