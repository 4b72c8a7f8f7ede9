"""The papers' tables, as far as one machine can reproduce them, and the archives of all runs."""
