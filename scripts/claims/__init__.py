"""Claims of the papers; each has its runs, its statistics and its verdict."""
